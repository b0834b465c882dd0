package replay

import "fmt"

// AnyVersion, as the version a worker serves, is one that it does not tell.
const AnyVersion = ^uint64(0)

// CheckServes refuses work to a worker whose policy is so old that what it would
// sample now could not be trained any more: ErrStale says from which version on
// it gets work. One version of grace is for a policy that was published just now
// and is on its way to the worker; its tickets name the version they need.
func CheckServes(kv Reader, run, worker string, serves uint64) error {
	if serves == AnyVersion {
		return nil
	}
	r, err := readRun(kv, run)
	if err != nil {
		return err
	}
	bound := r.GetSpec().GetMaxStaleness()
	if grace := bound + 1; grace < bound || r.LatestVersion <= grace || serves >= r.LatestVersion-grace {
		return nil
	}
	return fmt.Errorf("%w: worker %q serves policy version %d of run %q, the latest is %d and max_staleness is %d: it gets work again when it serves version %d or later",
		ErrStale, worker, serves, run, r.LatestVersion, bound, r.LatestVersion-bound-1)
}
