package learner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/skein-rl/skein/model"
)

const (
	stateFile = "checkpoint.bin"
	sealFile  = "SEALED"
	stepDir   = "step-"
)

// seal is the marker that makes a checkpoint directory count. It is written
// last, so a directory without it is half-written.
type seal struct {
	Digest string `json:"digest"`
	Step   uint64 `json:"step"`
}

// SaveCheckpoint writes dir/step-<n>/checkpoint.bin, then the seal, each by
// fsync and rename. An existing directory of the same step is replaced unless
// it holds the very same checkpoint. It returns the directory written.
func SaveCheckpoint(dir string, c *Checkpoint) (string, error) {
	data, err := c.Encode()
	if err != nil {
		return "", err
	}
	digest := model.BlobDigest(data)
	at := stepPath(dir, c.Step)
	if s, err := readSeal(at); err == nil && s.Digest == digest {
		return at, nil
	}
	js, err := json.Marshal(seal{digest, c.Step})
	if err != nil {
		return "", fmt.Errorf("learner: save checkpoint: %w", err)
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return "", fmt.Errorf("learner: save checkpoint: %w", err)
	}
	if err := os.Remove(filepath.Join(at, sealFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("learner: save checkpoint: %w", err)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{stateFile, data}, {sealFile, js}} {
		if err := replaceFile(filepath.Join(at, f.name), f.data); err != nil {
			return "", fmt.Errorf("learner: save checkpoint: %w", err)
		}
	}
	return at, syncDir(dir)
}

// replaceFile writes path atomically and durably.
func replaceFile(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func readSeal(dir string) (s seal, err error) {
	js, err := os.ReadFile(filepath.Join(dir, sealFile))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(js, &s)
}

// LoadCheckpoint reads one checkpoint directory; an unsealed or damaged one is
// an error that wraps [ErrCheckpoint].
func LoadCheckpoint(dir string) (*Checkpoint, error) {
	s, err := readSeal(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is not sealed (half-written): %w", ErrCheckpoint, dir, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCheckpoint, dir, err)
	}
	if d := model.BlobDigest(data); d != s.Digest {
		return nil, fmt.Errorf("%w: %s: digest is %s, its seal says %s", ErrCheckpoint, dir, d, s.Digest)
	}
	c, err := DecodeCheckpoint(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return c, nil
}

// Checkpoints lists the steps of the sealed checkpoints under dir, in order.
func Checkpoints(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("learner: checkpoints: %w", err)
	}
	var out []uint64
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), stepDir) {
			continue
		}
		if s, err := readSeal(filepath.Join(dir, e.Name())); err == nil && stepPath(dir, s.Step) == filepath.Join(dir, e.Name()) {
			out = append(out, s.Step)
		}
	}
	slices.Sort(out)
	return out, nil
}

// LoadLatest reads the newest sealed checkpoint under dir that is intact.
// Those that are not are reported to warn (nil allowed) and passed over. It
// returns nil without an error when there is none.
func LoadLatest(dir string, warn func(error)) (*Checkpoint, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("learner: checkpoints: %w", err)
	}
	slices.Reverse(entries) // names sort by step
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), stepDir) {
			continue
		}
		c, err := LoadCheckpoint(filepath.Join(dir, e.Name()))
		if err == nil {
			return c, nil
		}
		if warn != nil {
			warn(err)
		}
	}
	return nil, nil
}

// PruneCheckpoints removes all but the newest keep sealed checkpoints under dir;
// 0 keeps all. The seal goes first, so that no half of one is ever read.
func PruneCheckpoints(dir string, keep int) error {
	if keep <= 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("learner: checkpoints: %w", err)
	}
	slices.Reverse(entries) // names sort by step
	sealed := 0
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if !e.IsDir() || !strings.HasPrefix(e.Name(), stepDir) {
			continue
		}
		if sealed < keep {
			if _, err := readSeal(at); err == nil {
				sealed++
			}
			continue
		}
		err := os.Remove(filepath.Join(at, sealFile))
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.RemoveAll(at)
		}
		if err != nil {
			return fmt.Errorf("learner: removing an old checkpoint: %w", err)
		}
	}
	return nil
}
