package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Roles a certificate can name.
const (
	RoleReplay  = "replay"  // a replay node: may also speak to its peers
	RoleWorker  = "worker"  // a rollout worker
	RoleLearner = "learner" // the learner
	RoleClient  = "client"  // status, log tools, everything else
)

const (
	serverName = RoleReplay + nameSuffix // DNS name in every replay node's certificate
	nameSuffix = ".skein"
	caValid    = 20 * 365 * 24 * time.Hour
	certValid  = 5 * 365 * 24 * time.Hour
	clockSkew  = time.Hour // certificates start this much before now
)

var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

func checkNode(id, role string) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("cluster: node id %q: use 1 to 63 letters, digits, '-' and '_', starting with a letter or digit", id)
	}
	switch role {
	case RoleReplay, RoleWorker, RoleLearner, RoleClient:
		return nil
	}
	return fmt.Errorf("cluster: role %q: use %s, %s, %s or %s", role, RoleReplay, RoleWorker, RoleLearner, RoleClient)
}

// Identity is a process's certificate in one cluster, with the authority that
// signed it. Replay nodes hold the authority's key and the token as well.
type Identity struct {
	ID   string
	Role string

	cert  tls.Certificate // leaf, then authority
	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey
	token Token
}

// Cluster is the fingerprint of the authority, short: it names the cluster in
// messages.
func (id *Identity) Cluster() string { return short(sha256.Sum256(id.ca.Raw)) }

// Token admits further processes; zero on a process that may not admit.
func (id *Identity) Token() Token { return id.token }

// Expires is the end of the certificate's validity.
func (id *Identity) Expires() time.Time { return id.cert.Leaf.NotAfter }

// newCluster makes an authority, its token and a replay node's certificate.
func newCluster(id string) (*Identity, error) {
	if err := checkNode(id, RoleReplay); err != nil {
		return nil, err
	}
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
	ident := &Identity{ID: id, Role: RoleReplay, ca: ca, caKey: key, token: newToken(der)}
	nodeKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf, err := ident.sign(id, RoleReplay, &nodeKey.PublicKey)
	if err != nil {
		return nil, err
	}
	return ident, ident.setLeaf(leaf, nodeKey)
}

// sign issues a certificate. Only those of replay nodes and learners serve.
func (id *Identity) sign(node, role string, pub any) ([]byte, error) {
	if id.caKey == nil {
		return nil, fmt.Errorf("cluster: node %s holds no authority key and cannot admit: join through a replay node", id.ID)
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: node},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(certValid),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:         []*url.URL{{Scheme: "skein", Host: role, Path: "/" + node}},
	}
	if role == RoleReplay || role == RoleLearner {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		tmpl.DNSNames = []string{role + nameSuffix}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, id.ca, pub, id.caKey)
	if err != nil {
		return nil, fmt.Errorf("cluster: sign certificate of %s: %w", node, err)
	}
	return der, nil
}

// setLeaf installs a certificate after checking that it is the key's and the
// authority's.
func (id *Identity) setLeaf(der []byte, key *ecdsa.PrivateKey) error {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("cluster: certificate of %s: %w", id.ID, err)
	}
	if err := leaf.CheckSignatureFrom(id.ca); err != nil {
		return fmt.Errorf("cluster: certificate of %s is not signed by cluster %s: %w", id.ID, id.Cluster(), err)
	}
	if pub, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !pub.Equal(&key.PublicKey) {
		return fmt.Errorf("cluster: certificate of %s does not belong to its key", id.ID)
	}
	id.ID, id.Role, err = certNode(leaf)
	if err != nil {
		return err
	}
	id.cert = tls.Certificate{Certificate: [][]byte{der, id.ca.Raw}, PrivateKey: key, Leaf: leaf}
	return nil
}

// certNode reads id and role from a certificate.
func certNode(c *x509.Certificate) (id, role string, err error) {
	for _, u := range c.URIs {
		if u.Scheme == "skein" {
			id, role = strings.TrimPrefix(u.Path, "/"), u.Host
			return id, role, checkNode(id, role)
		}
	}
	return "", "", fmt.Errorf("cluster: certificate %q names no skein node", c.Subject.CommonName)
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil { // crypto/rand does not fail
		panic(err)
	}
	return n
}

// save writes the identity into dir, keys with mode 0600.
func (id *Identity) save(dir string) error {
	key, err := x509.MarshalECPrivateKey(id.cert.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		return err
	}
	files := []struct {
		name, kind string
		der        []byte
	}{
		{fileCACert, "CERTIFICATE", id.ca.Raw},
		{fileNodeKey, "EC PRIVATE KEY", key},
	}
	if id.caKey != nil {
		k, err := x509.MarshalECPrivateKey(id.caKey)
		if err != nil {
			return err
		}
		files = append(files, struct {
			name, kind string
			der        []byte
		}{fileCAKey, "EC PRIVATE KEY", k})
	}
	// The certificate comes last: LoadIdentity takes its presence as "whole".
	files = append(files, struct {
		name, kind string
		der        []byte
	}{fileNodeCert, "CERTIFICATE", id.cert.Certificate[0]})
	if id.token.secret != "" {
		if err := writeFile(filepath.Join(dir, fileToken), []byte(id.token.Reveal()+"\n"), 0o600); err != nil {
			return err
		}
	}
	for _, f := range files {
		b := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der})
		if err := writeFile(filepath.Join(dir, f.name), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// ErrNoIdentity: the directory holds no certificate yet; join first.
var ErrNoIdentity = errors.New("cluster: no identity")

// LoadIdentity reads the certificate of an earlier Join or first start.
// ErrNoIdentity when there is none.
func LoadIdentity(dir string) (*Identity, error) {
	fail := func(name string, err error) (*Identity, error) {
		return nil, fmt.Errorf("cluster: identity in %s: file %s: %w; restore it, or join again with an empty directory",
			dir, name, err)
	}
	leaf, err := readPEM(filepath.Join(dir, fileNodeCert))
	if err != nil {
		return fail(fileNodeCert, err)
	}
	if leaf == nil {
		return nil, fmt.Errorf("%w in %s: join the cluster with its address and token", ErrNoIdentity, dir)
	}
	caDER, err := needPEM(filepath.Join(dir, fileCACert))
	if err != nil {
		return fail(fileCACert, err)
	}
	id := &Identity{}
	if id.ca, err = x509.ParseCertificate(caDER); err != nil {
		return fail(fileCACert, err)
	}
	keyDER, err := needPEM(filepath.Join(dir, fileNodeKey))
	if err != nil {
		return fail(fileNodeKey, err)
	}
	key, err := x509.ParseECPrivateKey(keyDER)
	if err != nil {
		return fail(fileNodeKey, err)
	}
	if err := id.setLeaf(leaf, key); err != nil {
		return nil, err
	}
	if time.Now().After(id.Expires()) {
		return nil, fmt.Errorf("cluster: certificate of %s in %s expired on %s: remove %s and %s and join again",
			id.ID, dir, id.Expires().Format(time.DateOnly), fileNodeCert, fileNodeKey)
	}
	if id.Role != RoleReplay {
		return id, nil
	}
	if keyDER, err = needPEM(filepath.Join(dir, fileCAKey)); err != nil {
		return fail(fileCAKey, err)
	}
	if id.caKey, err = x509.ParseECPrivateKey(keyDER); err != nil {
		return fail(fileCAKey, err)
	}
	tok, err := readFile(filepath.Join(dir, fileToken))
	if err != nil {
		return fail(fileToken, err)
	}
	if id.token, err = ParseToken(string(tok)); err != nil {
		return fail(fileToken, err)
	}
	return id, nil
}

func readPEM(path string) ([]byte, error) {
	b, err := readFile(path)
	if b == nil || err != nil {
		return nil, err
	}
	blk, _ := pem.Decode(b)
	if blk == nil {
		return nil, errors.New("not PEM")
	}
	return blk.Bytes, nil
}

func needPEM(path string) ([]byte, error) {
	b, err := readPEM(path)
	if err == nil && b == nil {
		err = errors.New("missing")
	}
	return b, err
}
