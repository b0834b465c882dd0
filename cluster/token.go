package cluster

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
)

const tokenPrefix = "skein1"

// Token admits a process to one cluster. Its text form is
//
//	skein1.<sha256 of the CA certificate, hex>.<secret, base64url>
//	skein1.<sha256 of the CA certificate, hex>.<tenant>.<role>.<secret, base64url>
//
// the second for processes of one tenant, and of one role unless that is empty
// (see For). // The fingerprint lets the joiner know the right cluster before it shows the
// secret. Tokens are secrets: String hides the secret, Reveal does not.
type Token struct {
	ca     [sha256.Size]byte
	tenant string // "" = the cluster's own token
	role   string
	secret string
}

// ParseToken reads the text form.
func ParseToken(s string) (Token, error) {
	var t Token
	s = strings.TrimSpace(s)
	bad := func(what string) (Token, error) {
		return Token{}, fmt.Errorf("cluster: join token: %s; it looks like "+
			"%s.<64 hex digits>.<secret>: copy the file %q of a replay node's directory whole", what, tokenPrefix, fileToken)
	}
	if s == "" {
		return bad("empty")
	}
	parts := strings.Split(s, ".")
	if (len(parts) != 3 && len(parts) != 5) || parts[0] != tokenPrefix {
		return bad("not a token of this version")
	}
	ca, err := hex.DecodeString(parts[1])
	if err != nil || len(ca) != len(t.ca) {
		return bad("damaged fingerprint")
	}
	t.secret = parts[len(parts)-1]
	if b, err := base64.RawURLEncoding.DecodeString(t.secret); err != nil || len(b) < 16 {
		return bad("damaged secret")
	}
	if len(parts) == 5 {
		if _, err := (Token{secret: "any"}).For(parts[2], parts[3]); err != nil {
			return bad(fmt.Sprintf("tenant %q and role %q", parts[2], parts[3]))
		}
		t.tenant, t.role = parts[2], parts[3]
	}
	copy(t.ca[:], ca)
	return t, nil
}

// newToken makes a token for the authority with a fresh 256-bit secret.
func newToken(caDER []byte) Token {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return Token{ca: sha256.Sum256(caDER), secret: base64.RawURLEncoding.EncodeToString(b[:])}
}

// Cluster names the token's cluster in messages, as Identity.Cluster does.
func (t Token) Cluster() string { return short(t.ca) }

// Reveal is the text form, to be written to a file of mode 0600 or handed to
// the operator; never to a log.
func (t Token) Reveal() string {
	s := tokenPrefix + "." + hex.EncodeToString(t.ca[:]) + "."
	if t.tenant != "" {
		s += t.tenant + "." + t.role + "."
	}
	return s + t.secret
}

// String hides the secret, so that a token that is printed by mistake does
// not leak.
func (t Token) String() string {
	return tokenPrefix + "." + hex.EncodeToString(t.ca[:4]) + "….(hidden)"
}

// GoString is String, for %#v.
func (t Token) GoString() string { return t.String() }

// LogValue is String, for slog.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// admits compares in constant time.
func (t Token) admits(secret string) bool {
	return t.secret != "" && subtle.ConstantTimeCompare([]byte(t.secret), []byte(secret)) == 1
}

func short(fp [sha256.Size]byte) string { return hex.EncodeToString(fp[:4]) }
