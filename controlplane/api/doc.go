// Package api serves the host API: JSON over net/http, described by an OpenAPI
// 3.1 document that is made from the same route table (huma makes the schemas
// and checks bodies against them).
//
// What holds for every answer, refusals included: Bowline-Api-Version,
// Bowline-Schema-Hash and Bowline-Request-Id are set; an error has the one
// body of resource.ErrorEnvelope with a code of the table in package wire; a
// refusal names the member, the rule, the limit and the size, and never a
// value, because a value could be a secret. A member's name that is not part
// of the schema is a value in this sense too: only a known name close to it is
// told.
//
// huma's own router, decoder and error model are not used: they echo rejected
// values, accept a member twice, and answer 404 and 405 as text.
//
// Events of a run are streamed as Server-Sent Events or as NDJSON
// (Accept: application/x-ndjson), one resource.Line each:
//
//	id: 1.17
//	data: {"type":"event","id":"1.17","runId":…,"event":{"type":"item.delta",
//	  "at":…,"origin":"runner","sessionId":…,"turnId":…,
//	  "source":{"epoch":"1","seq":9,"eventId":…},"payload":{…}}}
//
//	event: status
//	data: {"type":"status","runId":…,"status":"running","head":"1.17"}
//
// Control lines (status, gap, error) carry no id, so they never move a
// reader's cursor; a silent stream gets a comment (SSE) or an empty line
// (NDJSON) every 15 s. The stream ends after the event run.ended.
//
// Concurrency: a [Server] serves any number of requests at once. It reads a
// run's events page by page at the reader's pace, so a slow reader costs one
// page of memory, and one that takes nothing for 30 s is closed.
package api
