package datadir

import (
	"os"
	"testing"

	"bowline/wire"
)

func TestFolderOfAnotherUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := ownedBy(st, os.Geteuid()); err != nil {
		t.Errorf("our own: %v", err)
	}
	if err := ownedBy(st, os.Geteuid()+1); err == nil {
		t.Error("a folder of another user is taken")
	}
	if os.Geteuid() != 0 {
		return // the rest has to give a folder away
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(dir); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("Open: %v", err)
	}
	if _, _, err := Find(dir); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("Find: %v", err)
	}
	if _, _, err := OwnerProcess(dir); wire.CodeOf(err) != wire.CodeUnavailable {
		t.Errorf("OwnerProcess: %v", err)
	}
}
