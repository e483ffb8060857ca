package sqlite

import (
	"path/filepath"
	"testing"

	"bowline/controlplane/store"
	"bowline/controlplane/store/storetest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) (store.Store, func() store.Store) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "data", "bowline.db")
		s := openTest(t, path, Options{})
		return s, func() store.Store {
			t.Helper()
			if err := s.Close(); err != nil {
				t.Fatalf("close before reopening: %v", err)
			}
			s = openTest(t, path, Options{})
			return s
		}
	})
}

func openTest(t *testing.T, path string, opts Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}
