package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
)

// tokenBox holds a replay node's join token and which generation it is. A
// rotation makes the next generation on one node; it spreads as the address
// book does, and of two tokens the younger one is kept, so that all nodes end
// with the same.
type tokenBox struct {
	mu    sync.Mutex
	token Token
	gen   uint64
}

func (b *tokenBox) get() (Token, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.token, b.gen
}

func (b *tokenBox) set(t Token, gen uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.token, b.gen = t, gen
}

// take keeps what is younger and tells whether it was.
func (b *tokenBox) take(t Token, gen uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.ca != b.token.ca || gen < b.gen || gen == b.gen && t.secret <= b.token.secret {
		return false
	}
	b.token, b.gen = t, gen
	return true
}

// save writes the token file: the text, then the generation when there was a
// rotation. Whoever reads the file for the token takes its first line.
func (b *tokenBox) save(dir string) error {
	t, gen := b.get()
	if t.secret == "" {
		return nil
	}
	text := t.Reveal() + "\n"
	if gen > 0 {
		text += fmt.Sprintf("generation %d\n", gen)
	}
	return writeFile(filepath.Join(dir, fileToken), []byte(text), 0o600)
}

func (b *tokenBox) load(dir string) error {
	raw, err := readFile(filepath.Join(dir, fileToken))
	if err != nil {
		return err
	}
	first, rest, _ := strings.Cut(string(raw), "\n")
	t, err := ParseToken(first)
	if err != nil {
		return err
	}
	var gen uint64
	if word := strings.Fields(rest); len(word) > 0 {
		if len(word) != 2 || word[0] != "generation" {
			return fmt.Errorf("second line %q: want \"generation N\"", rest)
		}
		if gen, err = strconv.ParseUint(word[1], 10, 64); err != nil {
			return fmt.Errorf("generation: %w", err)
		}
	}
	b.set(t, gen)
	return nil
}

// wire is the token for a fellow replay node.
func (b *tokenBox) wire() *pb.JoinToken {
	t, gen := b.get()
	return &pb.JoinToken{Token: t.Reveal(), Generation: gen}
}

// hearToken takes over a younger token from a fellow.
func (n *Node) hearToken(news *pb.JoinToken) {
	if news.GetToken() == "" {
		return // a node of a version without rotation
	}
	t, err := ParseToken(news.GetToken())
	if err == nil {
		err = n.takeToken(t, news.GetGeneration())
	}
	if err != nil {
		n.log.Warn("join token of a fellow", "error", err)
	}
}

// takeToken keeps the younger token, in memory and in the node's directory.
func (n *Node) takeToken(t Token, gen uint64) error {
	if !n.ident.secret.take(t, gen) {
		return nil
	}
	n.log.Info("join token replaced", "generation", gen)
	if err := n.ident.secret.save(n.cfg.Dir); err != nil {
		return fmt.Errorf("cluster: the new join token is in force, but not in the file %s of %s: %w", fileToken, n.id, err)
	}
	return nil
}

// RotateToken replaces the join token: an operator's business.
func (m *membershipServer) RotateToken(ctx context.Context, _ *pb.RotateTokenRequest) (*pb.RotateTokenResponse, error) {
	if err := callerOf(ctx).mustOperate("rotate the join token"); err != nil {
		return nil, err
	}
	if err := m.n.mustLead(); err != nil { // one at a time
		return nil, err
	}
	old, gen := m.n.ident.secret.get()
	next := newToken(m.n.ident.ca.Raw)
	next.ca = old.ca
	if err := m.n.takeToken(next, gen+1); err != nil {
		return nil, err
	}
	return &pb.RotateTokenResponse{Token: next.Reveal(), Generation: gen + 1}, nil
}

// RotateToken makes a new join token, which every replay node that runs takes
// over within a second or so; certificates stay valid. The token is a secret.
func (c *Client) RotateToken(ctx context.Context) (Token, error) {
	var out Token
	err := c.call(ctx, "rotate the join token", 0, func(ctx context.Context, l *link, _ bool) error {
		resp, err := pb.NewMembershipClient(l).RotateToken(ctx, &pb.RotateTokenRequest{})
		if err != nil {
			return err
		}
		out, err = ParseToken(resp.GetToken())
		return err
	})
	return out, err
}
