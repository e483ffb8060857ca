package journal

import (
	"fmt"

	"bowline/wire"
	"bowline/wire/canonjson"
	"bowline/wire/prp"
)

// Decision is what to do with a delivered command.
type Decision int

// The decisions.
const (
	Execute  Decision = iota + 1 // its pending mark is durable
	InFlight                     // it is being executed: its result will come
	Answered                     // it has this result already
)

// Begin takes a delivered command (prp.md 9.7). It returns with the pending
// mark durable ([Execute]), or with the command as it stands. A command that
// changed, or that leaves a gap, is an error that must end the process.
func (j *Journal) Begin(cmd prp.Command) (Decision, Command, error) {
	fingerprint, err := cmd.Fingerprint()
	if err != nil {
		return 0, Command{}, &wire.Error{Code: wire.CodeProtocol, Message: fmt.Sprintf("command %d holds a number that is not finite", cmd.ControllerSeq), Cause: err}
	}
	c := Command{
		CommandID: cmd.CommandID, ControllerSeq: cmd.ControllerSeq, Type: cmd.Type,
		Fingerprint: fingerprint, Status: prp.StatusPending,
	}
	j.mu.Lock()
	if j.failure != nil {
		defer j.mu.Unlock()
		return 0, Command{}, j.failure
	}
	if i, known := j.st.command(cmd.CommandID); known {
		defer j.mu.Unlock()
		have := j.st.Commands[i]
		if have.Fingerprint != fingerprint {
			return 0, Command{}, wire.Errorf(wire.CodeCommandConflict, "command %d came again with other content", cmd.ControllerSeq)
		}
		if have.Status == prp.StatusPending {
			return InFlight, have, nil
		}
		return Answered, have, nil
	}
	if cmd.ControllerSeq <= j.st.Compacted {
		defer j.mu.Unlock()
		c.Status = prp.StatusRejected
		c.Result = resultJSON("command_history_compacted", "the result of this command is no longer kept")
		return Answered, c, nil
	}
	if want := j.st.LastCommand + 1; cmd.ControllerSeq != want {
		defer j.mu.Unlock()
		return 0, Command{}, wire.Errorf(wire.CodeProtocol, "command %d is out of order, expected %d", cmd.ControllerSeq, want)
	}
	p := j.write(&beginChange{c})
	j.mu.Unlock()
	if err := j.wait(p); err != nil || !j.par.EagerView {
		return Execute, c, err
	}
	return Execute, c, j.writeView()
}

// Finish makes a result durable, together with a change of the small state
// (nil: none), and renews the view. After it the result may be sent.
func (j *Journal) Finish(id, status string, result []byte, update func(*Meta)) (Command, error) {
	j.mu.Lock()
	if j.failure != nil {
		defer j.mu.Unlock()
		return Command{}, j.failure
	}
	i, ok := j.st.command(id)
	if !ok {
		panic("bug: journal: result of an unknown command")
	}
	changes := []change{&finishChange{finishMeta{id, status}, result}}
	if update != nil {
		m := j.st.Meta.clone()
		update(&m)
		changes = append(changes, &metaChange{m})
	}
	p := j.write(changes...)
	c := j.st.Commands[i]
	j.mu.Unlock()
	if err := j.wait(p); err != nil {
		return Command{}, err
	}
	return c, j.Publish()
}

// Interrupted turns the commands a predecessor left pending into indeterminate
// ones, durably, and returns them: they are never executed again.
func (j *Journal) Interrupted() ([]Command, error) {
	j.mu.Lock()
	var changes []change
	var list []Command
	for _, c := range j.st.Commands {
		if c.Status == prp.StatusPending {
			c.Status = prp.StatusIndeterminate
			c.Result = resultJSON("execution_indeterminate", "the runner ended while this command was executed")
			changes = append(changes, &finishChange{finishMeta{c.CommandID, c.Status}, c.Result})
			list = append(list, c)
		}
	}
	if len(changes) == 0 {
		j.mu.Unlock()
		return nil, nil
	}
	p := j.write(changes...)
	j.mu.Unlock()
	return list, j.wait(p)
}

// resultJSON is a result that says why there is none.
func resultJSON(code, message string) []byte {
	b, err := canonjson.Marshal(map[string]string{"code": code, "message": message})
	if err != nil {
		panic(fmt.Sprintf("bug: journal: %v", err))
	}
	return b
}

// Lookup finds a journaled command.
func (j *Journal) Lookup(id string) (Command, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	i, ok := j.st.command(id)
	if !ok {
		return Command{}, false
	}
	return j.st.Commands[i], true
}
