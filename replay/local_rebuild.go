package replay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/skein-rl/skein/replay/segment"
)

// RebuildReport says what RebuildIndex did.
type RebuildReport struct {
	Records int    // found in segments and indexed
	Gaps    int    // stretches without a valid record
	Aside   string // where the old index is now; "" = there was none
}

// RebuildIndex sets the index of a stopped storage aside, whatever its state,
// and makes a new one from the segment files. The fold's state is not in them:
// the new index has applied nothing, and whoever opens it next applies the
// cluster's snapshot and log again.
func RebuildIndex(dir string, opts LocalOptions) (rep RebuildReport, err error) {
	index := filepath.Join(dir, "index")
	if _, err := os.Stat(index); err == nil {
		rep.Aside = fmt.Sprintf("%s.damaged-%s", index, time.Now().UTC().Format("20060102T150405.000000000"))
		if err := os.Rename(index, rep.Aside); err != nil {
			return rep, fmt.Errorf("replay: rebuild index: %w", err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return rep, fmt.Errorf("replay: rebuild index: %w", err)
	}
	l, err := OpenLocal(dir, opts) // indexes every record
	if err != nil {
		return rep, fmt.Errorf("replay: rebuild index: %w", err)
	}
	gaps, err := l.seg.Scan(context.Background(), segment.Position{}, func(segment.Entry) error {
		rep.Records++
		return nil
	})
	rep.Gaps = len(gaps)
	return rep, errors.Join(err, l.Close())
}
