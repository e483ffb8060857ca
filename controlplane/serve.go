// Package controlplane is the control plane as one thing to embed or serve:
// [New] wires store, sessions, gateway, runs, launcher and API into an
// http.Handler; [Serve] adds what a server process needs: the data folder's
// lock, a kept port, the ready file, graceful stop and idle exit.
package controlplane

import (
	"context"

	"bowline/wire"
)

// Serve runs a control plane until ctx ends (nil), it was idle long enough
// (nil), or it fails. Errors before it serves are *wire.Error: data_dir_busy,
// port_taken, listen_refused, usage, disk_full, store_indeterminate.
func Serve(ctx context.Context, opt Options) error {
	return wire.Errorf(wire.CodeNotAvailable, "placeholder %v %v", ctx, opt.Data)
}
