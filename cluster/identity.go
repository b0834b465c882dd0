package cluster

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
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
	certValid  = 90 * 24 * time.Hour // renewed after two thirds (renew.go)
	clockSkew  = time.Hour           // certificates start this much before now
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
	ID     string
	Role   string
	Tenant string // "" = the default one, AllTenants = every one

	group  string // random name of the raft group that the founder began; "" in certificates of old versions
	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey
	cert   atomic.Pointer[tls.Certificate] // leaf, then authority; replaced when it is renewed
	secret tokenBox                        // replay nodes
	valid  time.Duration                   // of the certificates it signs; 0 = certValid
}

// Cluster is the fingerprint of the authority, short: it names the cluster in
// messages.
func (id *Identity) Cluster() string { return short(sha256.Sum256(id.ca.Raw)) }

// Token admits further processes; zero on a process that may not admit.
func (id *Identity) Token() Token { t, _ := id.secret.get(); return t }

// Expires is the end of the certificate's validity.
func (id *Identity) Expires() time.Time { return id.leaf().NotAfter }

func (id *Identity) leaf() *x509.Certificate { return id.cert.Load().Leaf }

// newCluster makes an authority, its token and a replay node's certificate.
func newCluster(id string) (*Identity, error) {
	a, err := newAuthority()
	if err != nil {
		return nil, err
	}
	return a.found(id, "", 0)
}

// sign issues a certificate. All but those of clients serve.
func (id *Identity) sign(to caller, pub any) ([]byte, error) {
	if id.caKey == nil {
		return nil, fmt.Errorf("cluster: node %s holds no authority key and cannot admit: join through a replay node", id.ID)
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: to.id},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(cmp.Or(id.valid, certValid)),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:         []*url.URL{{Scheme: "skein", Host: to.role, Path: "/" + to.id, RawQuery: certQuery(id.group, to.tenant)}},
	}
	if to.role != RoleClient {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		tmpl.DNSNames = []string{to.role + nameSuffix}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, id.ca, pub, id.caKey)
	if err != nil {
		return nil, fmt.Errorf("cluster: sign certificate of %s: %w", to.id, err)
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
	got, err := certNode(leaf)
	switch {
	case err != nil:
		return err
	case id.cert.Load() == nil && id.ID == "": // read from files
		id.ID, id.Role, id.Tenant, id.group = got.id, got.role, got.tenant, certGroup(leaf)
	case got != id.caller():
		return fmt.Errorf("cluster: certificate for %s where %s was asked", got, id.caller())
	case id.cert.Load() == nil:
		id.group = certGroup(leaf)
	}
	id.cert.Store(&tls.Certificate{Certificate: [][]byte{der, id.ca.Raw}, PrivateKey: key, Leaf: leaf})
	return nil
}

// caller is how others see the process.
func (id *Identity) caller() caller { return caller{id.ID, id.Role, id.Tenant} }

// certNode reads id, role and tenant from a certificate.
func certNode(c *x509.Certificate) (caller, error) {
	for _, u := range c.URIs {
		if u.Scheme == "skein" {
			who := caller{strings.TrimPrefix(u.Path, "/"), u.Host, u.Query().Get("tenant")}
			return who, errors.Join(checkNode(who.id, who.role), checkTenantOf(who.role, who.tenant))
		}
	}
	return caller{}, fmt.Errorf("cluster: certificate %q names no skein node", c.Subject.CommonName)
}

// A group's name in certificates keeps two foundings by one authority apart: a
// founder that lost its disk and founds once more makes another group, which
// nobody of the first may take for it.
func certQuery(group, tenant string) string {
	q := url.Values{}
	if group != "" {
		q.Set("group", group)
	}
	if tenant != "" {
		q.Set("tenant", tenant)
	}
	return q.Encode()
}

func certGroup(c *x509.Certificate) string {
	for _, u := range c.URIs {
		if u.Scheme == "skein" {
			return u.Query().Get("group")
		}
	}
	return ""
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil { // crypto/rand does not fail
		panic(err)
	}
	return n
}
