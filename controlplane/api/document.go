package api

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"bowline/controlplane/resource"
	"bowline/wire"
)

// document makes the OpenAPI document of the routes and its hash, and gives
// each route with a body the check of its schema.
func document(routes []route) (doc []byte, hash string) {
	reg := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	errorSchema := humaSchema(reg, reflect.TypeFor[resource.ErrorEnvelope]())
	api := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title:   "Bowline host API",
			Version: resource.APIVersion,
		},
		Components: &huma.Components{
			Schemas: reg,
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"token": {Type: "http", Scheme: "bearer"},
			},
		},
	}
	for i := range routes {
		rt := &routes[i]
		op := &huma.Operation{
			Method: rt.method, Path: rt.path, OperationID: rt.id, Summary: rt.summary,
			Responses: map[string]*huma.Response{},
		}
		if rt.scope != "" {
			op.Security = []map[string][]string{{"token": {rt.scope}}}
		}
		for _, p := range rt.params {
			schema := &huma.Schema{Type: huma.TypeString}
			for _, e := range p.enum {
				schema.Enum = append(schema.Enum, e)
			}
			op.Parameters = append(op.Parameters, &huma.Param{
				Name: p.name, In: p.in, Description: p.doc, Required: p.in == "path", Schema: schema,
			})
		}
		if rt.input != nil {
			schema := humaSchema(reg, rt.inputType)
			op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{resource.MediaJSON: {Schema: schema}}}
			rt.check = func(tree any) error { return validate(reg, schema, tree) }
		}
		for _, status := range rt.statuses {
			op.Responses[strconv.Itoa(status)] = success(reg, rt)
		}
		for _, status := range errorStatuses(rt) {
			op.Responses[strconv.Itoa(status)] = &huma.Response{
				Description: "refused",
				Headers:     headers(),
				Content:     map[string]*huma.MediaType{resource.MediaJSON: {Schema: errorSchema}},
			}
		}
		api.AddOperation(op)
	}
	doc, err := json.Marshal(api)
	if err != nil {
		panic("bug: openapi document: " + err.Error())
	}
	sum := sha256.Sum256(doc)
	return doc, "sha256:" + hex.EncodeToString(sum[:])
}

func success(reg huma.Registry, rt *route) *huma.Response {
	resp := &huma.Response{Description: "done", Headers: headers(), Content: map[string]*huma.MediaType{}}
	media := rt.media
	if media == nil {
		media = []string{resource.MediaJSON}
	}
	for _, m := range media {
		mt := &huma.MediaType{}
		if rt.outputType != nil {
			mt.Schema = humaSchema(reg, rt.outputType)
		}
		resp.Content[m] = mt
	}
	return resp
}

func headers() map[string]*huma.Param {
	text := &huma.Schema{Type: huma.TypeString}
	return map[string]*huma.Param{
		resource.HeaderAPIVersion: {Schema: text, Description: "version of this API"},
		resource.HeaderSchemaHash: {Schema: text, Description: "hash of this document; for diagnosis"},
		resource.HeaderRequestID:  {Schema: text, Description: "names the request in the server's log"},
	}
}

// errorStatuses are the HTTP statuses a route refuses with.
func errorStatuses(rt *route) []int {
	codes := slices.Clone(rt.errors)
	codes = append(codes, wire.CodeBadRequest, wire.CodeMethodNotAllowed)
	if rt.scope != "" {
		codes = append(codes, wire.CodeUnauthorized, wire.CodeForbidden, wire.CodeInternal, wire.CodeUnavailable)
	}
	if rt.input != nil {
		codes = append(codes, wire.CodeTooLarge, wire.CodeUnsupportedMedia)
	}
	var out []int
	for _, c := range codes {
		out = append(out, c.HTTPStatus())
	}
	slices.Sort(out)
	return slices.Compact(out)
}
