package canonjson

// Raw gives the text of the member that [Value.Get] with the same keys would
// find, exactly as it is spelled, "" when there is none: of several equal keys
// the last counts, and a key in another spelling ("Payload", "PAYLOAD") is
// another key. encoding/json would merge and fold them, so that its reader saw
// something else than what was judged. text must be valid UTF-8 ([DecodeUTF8]
// makes it so) and is not checked beyond what is needed to find the place; one
// that is no JSON gives *[SyntaxError] or a text that is none.
func Raw(text string, keys ...string) (string, error) {
	p := parser{s: text}
	p.space()
	for _, key := range keys {
		found, err := p.find(key)
		if err != nil || found < 0 {
			return "", err
		}
		p.i = found
	}
	start := p.i
	if err := p.skip(); err != nil {
		return "", err
	}
	return text[start:p.i], nil
}

// find gives where the value of a key of the object at p.i begins, -1 when
// there is none.
func (p *parser) find(key string) (at int, err error) {
	at = -1
	if p.i >= len(p.s) || p.s[p.i] != '{' {
		return at, nil
	}
	p.i++
	p.space()
	if p.i < len(p.s) && p.s[p.i] == '}' {
		return at, nil
	}
	for {
		p.space()
		if p.i >= len(p.s) || p.s[p.i] != '"' {
			return at, p.fail("expected a key")
		}
		k, err := p.string()
		if err != nil {
			return at, err
		}
		p.space()
		if p.i >= len(p.s) || p.s[p.i] != ':' {
			return at, p.fail("expected a colon")
		}
		p.i++
		p.space()
		if k == key {
			at = p.i
		}
		if err := p.skip(); err != nil {
			return at, err
		}
		p.space()
		if done, err := p.separator('}'); done || err != nil {
			return at, err
		}
	}
}

// skip passes one value without reading it.
func (p *parser) skip() error {
	for open := 0; p.i < len(p.s); {
		switch p.s[p.i] {
		case '"':
			if err := p.skipString(); err != nil {
				return err
			}
		case '{', '[':
			open++
			p.i++
		case '}', ']':
			open--
			p.i++
		case ',', ':', ' ', '\t', '\n', '\r':
			p.i++
			if open == 0 {
				return p.fail("expected a value")
			}
			continue
		default:
			p.skipWord()
		}
		if open < 0 {
			return p.fail("expected a value")
		}
		if open == 0 {
			return nil
		}
	}
	return p.fail("text ends early")
}

func (p *parser) skipString() error {
	for p.i++; p.i < len(p.s); p.i++ {
		switch p.s[p.i] {
		case '\\':
			p.i++
		case '"':
			p.i++
			return nil
		}
	}
	return p.fail("text ends early")
}

// skipWord passes a number, true, false or null.
func (p *parser) skipWord() {
	for p.i < len(p.s) {
		switch p.s[p.i] {
		case '{', '}', '[', ']', '"', ',', ':', ' ', '\t', '\n', '\r':
			return
		}
		p.i++
	}
}
