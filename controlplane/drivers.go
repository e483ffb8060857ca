package controlplane

import (
	"maps"
	"slices"

	"bowline/controlplane/resource"
	"bowline/controlplane/runs"
)

// driverList is every driver name a run may use, by name.
func driverList(configured map[string]Driver) []resource.Driver {
	kinds := map[string]string{}
	for _, kind := range runs.Kinds() {
		kinds[kind] = kind
	}
	for name, d := range configured {
		kinds[name] = d.Kind
	}
	list := make([]resource.Driver, 0, len(kinds))
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		list = append(list, resource.Driver{Name: name, Kind: kinds[name]})
	}
	return list
}
