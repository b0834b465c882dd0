package cluster

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
)

func TestCertificatesAreRenewed(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1, func(_ int, c *Config) { c.CertLife = 3 * time.Second })
	node := c.nodes[0]
	w := c.dial("w1", RoleWorker)
	ofNode, ofWorker := node.ident.leaf(), w.id.leaf()
	eventually(t, "a new certificate of the node", func() bool { return node.ident.leaf().SerialNumber.Cmp(ofNode.SerialNumber) != 0 })
	eventually(t, "a new certificate of the worker", func() bool { return w.id.leaf().SerialNumber.Cmp(ofWorker.SerialNumber) != 0 })
	require.NotEqual(t, ofWorker.PublicKey, w.id.leaf().PublicKey, "a new key with it")
	eventually(t, "the end of the first ones", func() bool { return time.Now().After(ofNode.NotAfter) && time.Now().After(ofWorker.NotAfter) })

	l, err := dial(w.id, node.Addr(), "") // a connection of its own, with what is valid now
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	_, err = pb.NewReplayClient(l).Runs(testCtx(t), &pb.Empty{})
	require.NoError(t, l.fail(err))
}

func TestRenewedFilesSurviveACrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	id, err := newCluster("n0")
	require.NoError(t, err)
	require.NoError(t, id.save(dir))
	old, err := os.ReadFile(filepath.Join(dir, fileNodeKey))
	require.NoError(t, err)
	require.NoError(t, id.renewSelf(dir))
	fresh, err := os.ReadFile(filepath.Join(dir, fileNodeKey))
	require.NoError(t, err)
	require.NotEqual(t, old, fresh)

	// The crash came before the last rename: new certificate, old key.
	require.NoError(t, os.Rename(filepath.Join(dir, fileNodeKey), filepath.Join(dir, fileNextKey)))
	require.NoError(t, os.WriteFile(filepath.Join(dir, fileNodeKey), old, 0o600))
	back, err := LoadIdentity(dir)
	require.NoError(t, err)
	require.Zero(t, back.leaf().SerialNumber.Cmp(id.leaf().SerialNumber))
	// And before the certificate: old pair, with a key that fits nothing.
	require.NoError(t, writeKey(dir, fileNextKey, id.caKey))
	_, err = LoadIdentity(dir)
	require.NoError(t, err)
}

func TestExpiredCertificates(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	tok, err := ParseToken(c.token)
	require.NoError(t, err)
	dir := t.TempDir()
	cfg := JoinConfig{Addrs: []string{c.nodes[0].Addr()}, Token: tok, ID: "w1", Role: RoleWorker, Dir: dir}
	w, err := Join(testCtx(t), cfg)
	require.NoError(t, err)
	signer := &Identity{ID: "n0", Role: RoleReplay, ca: w.ca, caKey: c.nodes[0].ident.caKey, valid: time.Nanosecond}
	key, _, err := newRequest("w1")
	require.NoError(t, err)
	leaf, err := signer.sign(caller{id: "w1", role: RoleWorker}, &key.PublicKey)
	require.NoError(t, err)
	require.NoError(t, w.saveLeaf(dir, key, leaf))
	eventually(t, "the next second", func() bool { _, err := LoadIdentity(dir); return err != nil })

	without := cfg
	without.Token = Token{}
	_, err = Connect(testCtx(t), without)
	require.ErrorIs(t, err, errExpired)
	require.ErrorContains(t, err, "join again")
	client, err := Connect(testCtx(t), cfg) // with the token it does so itself
	require.NoError(t, err)
	require.NoError(t, client.Close())

	// A replay node holds the authority's key and helps itself.
	own := t.TempDir()
	id, err := newCluster("n0")
	require.NoError(t, err)
	id.valid = time.Nanosecond
	require.NoError(t, id.signSelf())
	id.valid = 0
	require.NoError(t, id.save(own))
	eventually(t, "the next second", func() bool { return time.Now().After(id.Expires()) })
	back, err := LoadIdentity(own)
	require.NoError(t, err)
	require.True(t, back.Expires().After(time.Now().Add(time.Hour)))
}

func TestTokenRotation(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	w := c.dial("w1", RoleWorker)
	old, err := ParseToken(c.token)
	require.NoError(t, err)
	_, err = w.RotateToken(testCtx(t))
	require.ErrorIs(t, err, ErrDenied)
	fresh, err := c.dial("op", RoleClient).RotateToken(testCtx(t))
	require.NoError(t, err)
	require.NotEqual(t, old, fresh)
	for i, n := range c.nodes {
		eventually(t, "the new token everywhere", func() bool { return n.ident.Token() == fresh })
		eventually(t, "and in its file", func() bool {
			saved, err := LoadIdentity(c.dirs[i])
			require.NoError(t, err)
			got, gen := saved.secret.get()
			return got == fresh && gen == 1
		})
	}
	join := func(tok Token, id string) error {
		_, err := Join(testCtx(t), JoinConfig{Addrs: []string{c.nodes[1].Addr()}, Token: tok, ID: id, Role: RoleWorker, Dir: t.TempDir()})
		return err
	}
	require.ErrorIs(t, join(old, "w2"), ErrDenied)
	require.NoError(t, join(fresh, "w3"))
	_, err = w.Runs(testCtx(t)) // whoever is in stays in
	require.NoError(t, err)
}

func TestTokenBoxTakesTheYounger(t *testing.T) {
	t.Parallel()
	a, b := newToken(nil), newToken(nil)
	if a.secret > b.secret {
		a, b = b, a
	}
	var x, y tokenBox
	x.set(a, 0)
	y.set(a, 0)
	// Two rotations at once on two sides of a partition end in the same token.
	require.True(t, x.take(a, 1))
	require.True(t, y.take(b, 1))
	require.True(t, x.take(b, 1))
	require.False(t, y.take(a, 1))
	require.Equal(t, x.wire(), y.wire())
	require.False(t, x.take(newToken([]byte("another authority")), 9))
	dir := t.TempDir()
	require.NoError(t, x.save(dir))
	var z tokenBox
	require.NoError(t, z.load(dir))
	require.Equal(t, x.wire(), z.wire())
}

func TestFleetWithAnAuthorityMadeBefore(t *testing.T) {
	t.Parallel()
	keys := t.TempDir()
	tok, err := MakeAuthority(keys)
	require.NoError(t, err)
	_, err = MakeAuthority(keys)
	require.ErrorContains(t, err, "holds ca.crt already")

	ln := []string{freePort(t), freePort(t)}
	conf := func(i int) Config {
		c := testConfig(t, filepath.Join(t.TempDir(), "n"))
		c.ID, c.Listen, c.Advertise, c.Authority, c.Founder, c.Join = []string{"r0", "r1"}[i], ln[i], ln[i], keys, "r0", ln
		return c
	}
	// Equal settings everywhere; the one that joins is there first and waits.
	second := make(chan *Node, 1)
	go func() {
		n, err := Open(testCtx(t), conf(1))
		if err != nil {
			t.Error(err)
		}
		second <- n
	}()
	first := conf(0)
	n0, err := Open(testCtx(t), first)
	require.NoError(t, err)
	n1 := <-second
	require.NotNil(t, n1)
	defer func() { _ = n1.Close() }()
	require.NoError(t, n0.WaitReady(testCtx(t), 2))
	require.Equal(t, tok, n1.Identity().Token())

	// The founder lost its disk: it must not found a second cluster beside the first.
	require.NoError(t, n0.Close())
	first.Dir = t.TempDir()
	_, err = Open(testCtx(t), first)
	require.ErrorContains(t, err, `"r0" is taken`)

	// It did so while nobody answered: another group, which the others refuse.
	alone := conf(0)
	alone.Join = nil
	other, err := Open(testCtx(t), alone)
	require.NoError(t, err)
	defer func() { _ = other.Close() }()
	_, err = dialOnce(t, n1.ident, other.Addr())
	require.ErrorIs(t, err, errOtherCluster)
	require.ErrorContains(t, err, "founded anew")
}

// dialOnce makes one call of a peer.
func dialOnce(t *testing.T, id *Identity, addr string) (*pb.AnnounceResponse, error) {
	l, err := dial(id, addr, "")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	resp, err := pb.NewPeerClient(l).Announce(testCtx(t), &pb.AnnounceRequest{Self: &pb.NodeAddr{Id: id.ID}})
	return resp, l.fail(err)
}

// freePort is an address that was free a moment ago.
func freePort(t *testing.T) string {
	ln, err := listen("127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}
