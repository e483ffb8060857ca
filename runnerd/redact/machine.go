package redact

// node is one state of the automaton: a prefix of at least one form. Its
// children are a linked list, since almost every state has one.
type node struct {
	first   int32 // first child, 0 = none
	next    int32 // next sibling, 0 = none
	fail    int32 // longest proper suffix that is a prefix too
	depth   int32 // length of the prefix
	longest int32 // length of the longest form that ends here, 0 = none
	char    byte
}

// machine is an Aho-Corasick automaton. State 0 is the root.
type machine struct {
	nodes []node
	root  [256]int32 // children of the root
}

func newMachine(forms [][]byte) *machine {
	m := &machine{nodes: make([]node, 1)}
	for _, form := range forms {
		m.insert(form)
	}
	m.link()
	return m
}

func (m *machine) insert(form []byte) {
	at := int32(0)
	for _, c := range form {
		child := m.child(at, c)
		if child == 0 {
			child = int32(len(m.nodes)) //nolint:gosec // forms are bounded by the environment's size, far below 2^31
			n := node{char: c, depth: m.nodes[at].depth + 1}
			if at == 0 {
				m.root[c] = child
			} else {
				n.next = m.nodes[at].first
			}
			m.nodes = append(m.nodes, n)
			if at != 0 {
				m.nodes[at].first = child
			}
		}
		at = child
	}
	m.nodes[at].longest = m.nodes[at].depth
}

// child is the state after c, 0 when there is none (the root is nobody's
// child).
func (m *machine) child(at int32, c byte) int32 {
	if at == 0 {
		return m.root[c]
	}
	for n := m.nodes[at].first; n != 0; n = m.nodes[n].next {
		if m.nodes[n].char == c {
			return n
		}
	}
	return 0
}

// link sets the fail links in order of depth.
func (m *machine) link() {
	queue := make([]int32, 0, len(m.nodes))
	for _, n := range m.root {
		if n != 0 {
			queue = append(queue, n)
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for n := m.nodes[at].first; n != 0; n = m.nodes[n].next {
			m.nodes[n].fail = m.step(m.nodes[at].fail, m.nodes[n].char)
			queue = append(queue, n)
		}
		// A form that ends at a suffix ends here too; the longest counts, it
		// covers the others.
		if m.nodes[at].longest == 0 {
			m.nodes[at].longest = m.nodes[m.nodes[at].fail].longest
		}
	}
}

// step is the state after c.
func (m *machine) step(at int32, c byte) int32 {
	for {
		if n := m.child(at, c); n != 0 {
			return n
		}
		if at == 0 {
			return 0
		}
		at = m.nodes[at].fail
	}
}

// matches reports whether any form occurs in b.
func (m *machine) matches(b []byte) bool {
	at := int32(0)
	for _, c := range b {
		at = m.step(at, c)
		if m.nodes[at].longest != 0 {
			return true
		}
	}
	return false
}
