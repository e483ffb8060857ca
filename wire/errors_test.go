package wire

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/errors.md anew")

// declaredCodes reads the constants out of the source, so that a code cannot be
// added without its line in the table.
func declaredCodes(t *testing.T) []Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []Code
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 || !strings.HasPrefix(v.Names[0].Name, "Code") {
				continue
			}
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, Code(text))
		}
	}
	return out
}

func TestTableIsComplete(t *testing.T) {
	t.Parallel()
	codes, rows := declaredCodes(t), Table()
	if len(codes) == 0 || len(codes) != len(rows) {
		t.Fatalf("%d codes, %d lines in the table", len(codes), len(rows))
	}
	seen := map[Code]bool{}
	for i, e := range rows {
		if codes[i] != e.Code {
			t.Errorf("line %d is %s, the %dth code is %s", i, e.Code, i, codes[i])
		}
		if seen[e.Code] {
			t.Errorf("%s appears twice", e.Code)
		}
		seen[e.Code] = true
		if http.StatusText(e.HTTPStatus) == "" || e.HTTPStatus < 400 {
			t.Errorf("%s has status %d", e.Code, e.HTTPStatus)
		}
		if e.ExitCode < ExitFailed || e.ExitCode > ExitIntegrity || e.Meaning == "" {
			t.Errorf("%s: exit %d, meaning %q", e.Code, e.ExitCode, e.Meaning)
		}
		if e.Code.HTTPStatus() != e.HTTPStatus || e.Code.ExitCode() != e.ExitCode {
			t.Errorf("%s: the methods disagree with the table", e.Code)
		}
	}
	if Code("unheard_of").HTTPStatus() != 500 || Code("unheard_of").ExitCode() != ExitFailed {
		t.Error("an unknown code is not our fault")
	}
}

func errorsDocument() string {
	var b strings.Builder
	b.WriteString(`# Errors

Every failure a host or an operator sees has one of these codes. Codes are stable: switch on them, not on messages. A code is added when needed and never renamed or given another meaning.

The host API answers ` + "`{\"error\":{\"code\",\"message\",\"requestId\",\"details\"}}`" + ` with the status below; a program that ends because of the error exits with the code below (runnerd in PRP use exits with 0 or 1 only).

| code | HTTP | exit | meaning |
|---|---|---|---|
`)
	for _, e := range Table() {
		fmt.Fprintf(&b, "| `%s` | %d | %d | %s |\n", e.Code, e.HTTPStatus, e.ExitCode, e.Meaning)
	}
	b.WriteString(`
Exit codes: 0 ok, 1 failed, 2 usage, 3 not ready, 4 refused by the peer, 5 integrity fault, 130 ended by a signal.

This file is written by ` + "`go test ./wire -run TestErrorsDocument -update`" + `; the same test fails when it differs from the table in ` + "`wire/errors.go`" + `.
`)
	return b.String()
}

func TestErrorsDocument(t *testing.T) {
	t.Parallel()
	const path = "../docs/errors.md"
	if *update {
		if err := os.WriteFile(path, []byte(errorsDocument()), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != errorsDocument() {
		t.Errorf("%s differs from the table; run go test ./wire -run TestErrorsDocument -update", path)
	}
}

func TestErrorValue(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	e := &Error{Code: CodeConflict, Message: "m", Cause: cause}
	if e.Error() != "conflict: m: cause" || !errors.Is(e, cause) || CodeOf(fmt.Errorf("around: %w", e)) != CodeConflict {
		t.Errorf("%v", e)
	}
	if CodeOf(cause) != CodeInternal {
		t.Error("an error without a code is not internal")
	}
	f := Errorf(CodeTooLarge, "%d bytes", 3)
	g := f.With("limit", 2).With("size", 3)
	if f.Details != nil || len(g.Details) != 2 || g.Error() != "too_large: 3 bytes" {
		t.Errorf("%+v and %+v", f, g)
	}
}
