// Package e2e holds the tests that span folders: the rules of the house, the
// crash tests with real processes, the real Codex. It has no other code.
package e2e

import (
	"bufio"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layer says which of our top-level folders the files of one folder may import
// (docs/architecture.md, "Folders"). Arrows point down only.
var layer = map[string][]string{
	"crypto":       {"crypto"},
	"wire":         {"wire", "crypto"},
	"driver":       {"driver", "wire", "crypto"},
	"runnerd":      {"runnerd", "driver", "wire", "crypto"},
	"controlplane": {"controlplane", "wire", "crypto"},
	"conformance":  {"conformance"},
	"cmd":          {"cmd", "controlplane", "runnerd", "driver", "wire", "crypto", "conformance"},
}

func repoRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "..", "..")
}

// goFiles calls fn for every Go file of the module, testdata and the bench
// module left out, with its slash path from the root.
func goFiles(t *testing.T, fn func(rel, path string)) {
	t.Helper()
	root := repoRoot(t)
	n := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if rel == "bench" || name == "testdata" || name == "node_modules" || rel != "." && strings.HasPrefix(name, ".") {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") {
			n++
			fn(filepath.ToSlash(rel), path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 20 {
		t.Fatalf("only %d Go files found below %s: the walk is broken", n, root)
	}
}

func TestImportArrows(t *testing.T) {
	t.Parallel()
	goFiles(t, func(rel, path string) {
		folder, _, ok := strings.Cut(rel, "/")
		allowed := layer[folder]
		if !ok || allowed == nil {
			t.Errorf("%s: the top level is fixed: %s is not one of its folders", rel, folder)
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Error(err)
			return
		}
		for _, imp := range f.Imports {
			target, ours := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), "bowline/")
			if !ours {
				continue
			}
			top, _, _ := strings.Cut(target, "/")
			if !slices.Contains(allowed, top) {
				t.Errorf("%s imports bowline/%s: %s may import %v only", rel, target, folder, allowed)
			}
		}
	})
}

func TestFileSize(t *testing.T) {
	t.Parallel()
	const maxLines = 500 // ours, quality.md
	goFiles(t, func(rel, path string) {
		if strings.HasSuffix(rel, "_test.go") {
			return
		}
		f, err := os.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		n := 0
		for s := bufio.NewScanner(f); s.Scan(); {
			n++
		}
		if n > maxLines {
			t.Errorf("%s has %d lines: split it by concern (limit %d)", rel, n, maxLines)
		}
	})
}

func TestNoJunkDrawer(t *testing.T) {
	t.Parallel()
	goFiles(t, func(rel, _ string) {
		for _, part := range strings.Split(filepath.Dir(rel), "/") {
			switch part {
			case "util", "utils", "common", "helpers", "misc":
				t.Errorf("%s: a package is named after what it does, not %q", rel, part)
			}
		}
	})
}
