package prp

import (
	"crypto/sha256"
	"encoding/hex"

	"bowline/wire/canonjson"
)

// WarmTransitionSchema names the receipt of a warm transition (prp.md 5.11).
const WarmTransitionSchema = "paperclip.runner.warm-transition.v1"

// WarmTransitionID is the transitionId of a receipt: the lower-case hex SHA-256
// of its canonical JSON without that member. Both sides compute it.
func WarmTransitionID(receipt canonjson.Value) (string, error) {
	return hexDigest(receipt.With("transitionId", canonjson.Value{}))
}

// ResultDigest is the lower-case hex SHA-256 of the canonical JSON of a whole
// command_result payload, as a receipt holds it.
func ResultDigest(payload canonjson.Value) (string, error) { return hexDigest(payload) }

func hexDigest(v canonjson.Value) (string, error) {
	text, err := canonjson.CanonicalUnlimited(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
