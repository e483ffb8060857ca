package cli

import (
	"bowline/driver"
	"bowline/driver/codex"
	"bowline/driver/command"
	"bowline/driver/scripted"
	"bowline/wire"
)

// descriptors are the drivers of this build, as data for the control plane.
func descriptors() []wire.Descriptor {
	var out []wire.Descriptor
	for _, d := range []driver.Driver{codex.New(), command.New(), scripted.New()} {
		x := d.Descriptor()
		modes := make([]string, len(x.PermissionModes))
		for i, m := range x.PermissionModes {
			modes[i] = string(m)
		}
		out = append(out, wire.Descriptor{
			Name: x.Name, Version: x.Version, ProviderVersion: x.ProviderVersion,
			InputSchema: x.InputSchema, PermissionModes: modes,
			Capabilities: wire.Capabilities(x.Capabilities),
		})
	}
	return out
}
