// SPDX-License-Identifier: Apache-2.0
// What compressed steps divide by, in plain loops: see naive.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "optim/naive/naive.h"

namespace thinwire::test::naive {

/// How many elements are out, count for less and came to life in a step.
struct Counts {
  std::size_t masked = 0;
  std::size_t heavy = 0;
  std::size_t revived = 0;
};

/// The denominators of the freeze. Those of heavy elements, far above their
/// block's median, are cut off there, and what they receive is scaled with
/// them; elements that never had a gradient are out until they get one.
class Frozen {
 public:
  /// At the end of step t, the last exact one. Scales m and v of heavy
  /// elements; sets those to 0 whose denominator is not finite. `gate`: in how
  /// many medians of its denominators a block's gradient may be long.
  Frozen(const Setup& setup, std::int64_t t, Floats& m, Floats& v, double gate);

  /// Those that were out for want of a gradient and now have one on some rank:
  /// from now on they take part. Returns them.
  std::vector<std::size_t> revive(const std::vector<Floats>& grads);
  /// A rank's gradients of a step in which nothing is exchanged: the next
  /// revive() counts them.
  void remember(const Floats& grads);
  /// Before an exact step: the momenta of heavy elements as they were.
  void restore(Floats& m) const;
  /// What ranks' momenta are made of: clipped, scaled where elements are heavy,
  /// bounded in blocks with an outlier.
  [[nodiscard]] std::vector<Floats> inputs(const std::vector<Floats>& grads,
                                           double clip) const;
  [[nodiscard]] Counts counts() const;

  /// What elements' momenta were multiplied by: 1 unless they are heavy.
  [[nodiscard]] const Floats& ratios() const { return ratio_; }

  Floats denominator;
  std::vector<float> floors;  ///< Per block.
  Flags active;

 private:
  void find_medians();
  void cut_heavy(Floats& m, Floats& v);
  void raise_to_floors();

  Setup setup_;
  std::vector<Range> blocks_;
  std::vector<float> medians_;      // per block
  std::vector<std::size_t> group_;  // of each block
  Flags sleeping_;                  // out until their first gradient
  Flags heard_;                     // had a gradient in a local step
  Floats ratio_;                    // r_j of heavy elements, else 1
  double gate_;
};

}  // namespace thinwire::test::naive
