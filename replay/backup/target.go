package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ErrNotFound: the target has no such object or backup.
var ErrNotFound = errors.New("backup: not found")

// Target is a place for objects: a folder, or a bucket of an object store. Safe
// for concurrent use; every call honours ctx's deadline.
type Target interface {
	// Put stores an object whole or not at all, replacing one of the same key.
	Put(ctx context.Context, key string, data []byte) error
	// Get returns an object; ErrNotFound.
	Get(ctx context.Context, key string) ([]byte, error)
	// List calls fn for every object whose key has the prefix, in order of keys.
	List(ctx context.Context, prefix string, fn func(Object) error) error
	// Delete removes an object; one that is not there is no error.
	Delete(ctx context.Context, key string) error
	// String names the place in messages, without secrets.
	String() string
}

// Object is what a target lists.
type Object struct {
	Key      string
	Size     int64
	Modified time.Time
}

// OpenTarget opens the target that a URL names:
//
//	PATH or file:///PATH                       a folder
//	s3://BUCKET/PREFIX?endpoint=HOST:PORT      a bucket of a server that speaks S3
//
// of which endpoint is s3.amazonaws.com by default; region=NAME and
// insecure=true (plain HTTP) may be added. The keys are those of the environment:
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.
func OpenTarget(where string) (Target, error) {
	if !strings.Contains(where, "://") {
		return openFolder(where)
	}
	u, err := url.Parse(where)
	if err != nil {
		return nil, fmt.Errorf("backup: target %q: %w", where, err)
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" {
			return nil, fmt.Errorf("backup: target %q: write file:///PATH with three slashes", where)
		}
		return openFolder(u.Path)
	case "s3":
		return openS3(u, os.Getenv)
	}
	return nil, fmt.Errorf("backup: target %q: %q is not known: use a folder, file:///PATH or s3://BUCKET/PREFIX", where, u.Scheme)
}

// folder keeps objects as files.
type folder struct{ dir string }

func openFolder(dir string) (Target, error) {
	if dir == "" {
		return nil, errors.New("backup: target is empty: name a folder, or s3://BUCKET/PREFIX")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("backup: target: %w", err)
	}
	return &folder{dir}, nil
}

func (f *folder) String() string { return f.dir }

func (f *folder) path(key string) (string, error) {
	if !fs.ValidPath(key) || key == "." {
		return "", fmt.Errorf("backup: key %q: want a path below the target", key)
	}
	return filepath.Join(f.dir, filepath.FromSlash(key)), nil
}

const tempPrefix = ".put-"

func (f *folder) Put(ctx context.Context, key string, data []byte) (err error) {
	path, err := f.path(key)
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("backup: put %s: %w", key, err)
	}
	t, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return fmt.Errorf("backup: put %s: %w", key, err)
	}
	_, err = t.Write(data)
	if err == nil {
		err = t.Sync()
	}
	if err = errors.Join(err, t.Close()); err == nil {
		err = os.Rename(t.Name(), path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("backup: put %s: %w", key, err), removeIfThere(t.Name()))
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (f *folder) Get(ctx context.Context, key string) ([]byte, error) {
	path, err := f.path(key)
	if err != nil || ctx.Err() != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s in %s", ErrNotFound, key, f.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("backup: get %s: %w", key, err)
	}
	return b, nil
}

func (f *folder) List(ctx context.Context, prefix string, fn func(Object) error) error {
	root := f.dir
	if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
		root = filepath.Join(f.dir, filepath.FromSlash(prefix[:i]))
	}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return errors.Join(err, ctx.Err())
		}
		rel, err := filepath.Rel(f.dir, path)
		if err != nil {
			return err
		}
		key := filepath.ToSlash(rel)
		if !strings.HasPrefix(key, prefix) || strings.HasPrefix(e.Name(), tempPrefix) {
			return nil
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return fn(Object{key, info.Size(), info.ModTime()})
	})
	if err != nil {
		return fmt.Errorf("backup: list %s: %w", prefix, err)
	}
	return nil
}

func (f *folder) Delete(_ context.Context, key string) error {
	path, err := f.path(key)
	if err == nil {
		err = removeIfThere(path)
	}
	if err != nil {
		return fmt.Errorf("backup: delete %s: %w", key, err)
	}
	return nil
}
