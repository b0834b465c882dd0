package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// authority is what a cluster is founded with: the key that signs its members
// and the token that admits them.
type authority struct {
	ca    *x509.Certificate
	key   *ecdsa.PrivateKey
	token Token
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cluster: make the authority: %w", err)
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "skein cluster"},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caValid),
		KeyUsage:              x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("cluster: make the authority: %w", err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{ca: ca, key: key, token: newToken(der)}, nil
}

// MakeAuthority writes the authority of a cluster that is yet to be founded
// into dir (files ca.crt, ca.key, token), so that every node of a fleet can be
// given the token before any of them runs. A directory that holds one is left
// as it is and refused.
func MakeAuthority(dir string) (Token, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Token{}, fmt.Errorf("cluster: authority: %w", err)
	}
	for _, name := range []string{fileCACert, fileCAKey, fileToken} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			return Token{}, errors.Join(err, fmt.Errorf("cluster: authority: %s holds %s already: a second authority would be another cluster: use an empty directory", dir, name))
		}
	}
	a, err := newAuthority()
	if err != nil {
		return Token{}, err
	}
	return a.token, errors.Join(
		writeFile(filepath.Join(dir, fileToken), []byte(a.token.Reveal()+"\n"), 0o600),
		writeKey(dir, fileCAKey, a.key),
		writePEM(dir, fileCACert, "CERTIFICATE", a.ca.Raw),
	)
}

// loadAuthority reads what MakeAuthority wrote.
func loadAuthority(dir string) (*authority, error) {
	fail := func(name string, err error) (*authority, error) {
		return nil, fmt.Errorf("cluster: config authority = %q: file %s: %w: make it with skein cluster init", dir, name, err)
	}
	a := &authority{}
	var err error
	if a.ca, err = readCert(dir, fileCACert); err != nil {
		return fail(fileCACert, err)
	}
	if a.key, err = readKey(dir, fileCAKey); err != nil {
		return fail(fileCAKey, err)
	}
	if pub, ok := a.ca.PublicKey.(*ecdsa.PublicKey); !ok || !pub.Equal(&a.key.PublicKey) {
		return fail(fileCAKey, errors.New("not the key of ca.crt"))
	}
	text, err := readFile(filepath.Join(dir, fileToken))
	if err != nil {
		return fail(fileToken, err)
	}
	if a.token, err = ParseToken(string(text)); err != nil {
		return fail(fileToken, err)
	}
	if newToken(a.ca.Raw).ca != a.token.ca {
		return fail(fileToken, errors.New("names another authority"))
	}
	return a, nil
}

// found makes the identity of the first replay node of a shard ("" = the first),
// whose certificates are valid for so long (0 = certValid).
func (a *authority) found(id, shard string, valid time.Duration) (*Identity, error) {
	if err := checkNode(id, RoleReplay); err != nil {
		return nil, err
	}
	var group [8]byte
	_, _ = rand.Read(group[:]) // never fails (crypto/rand)
	ident := &Identity{ID: id, Role: RoleReplay, ca: a.ca, caKey: a.key, valid: valid, group: groupName(shard, fmt.Sprintf("%x", group))}
	ident.secret.set(a.token, 0)
	return ident, ident.signSelf()
}
