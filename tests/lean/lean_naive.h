// SPDX-License-Identifier: Apache-2.0
// Lean 1-bit Adam's compression stage in plain loops: optim/naive/naive.h.
#pragma once

#include <vector>

#include "optim/naive/naive.h"
#include "thinwire/lean/lean_onebit_adam.h"

namespace thinwire::test::naive {

/// From the end of step t, the last exact one, on; ranks hold the same.
class Lean {
 public:
  struct Begin {
    std::int64_t t = 0;
    Floats params, m, v;
    Gradients gradients;  ///< That have seen the exact steps.
  };
  Lean(int world, const ParameterLayout& layout,
       const lean::LeanOnebitAdamOptions& o, Begin begin);

  /// False: skipped.
  bool step(const std::vector<Floats>& grads);

  Floats params;
  std::size_t masked = 0, heavy = 0, revived = 0;  ///< Of the last step.

 private:
  struct Cell {
    Range range;
    std::size_t parameter = 0;
    std::size_t group = 0;
    bool is_live = false;
    float median = 0, floor = 0, low = 0, step = 0;
  };
  void make_denominators(const Floats& v);
  void fill_dead_cells();
  void fit(Cell& cell, Floats& d);
  [[nodiscard]] float inverse(const Cell& cell, float d) const;
  void wake(const std::vector<Floats>& grads);
  [[nodiscard]] std::vector<Floats> inputs(const std::vector<Floats>& grads,
                                           double clip) const;

  int most_;     // steps between codes
  Setup setup_;  // a parameter per cell
  std::vector<Cell> cells_;
  Gradients gradients_;
  OneBit bits_;
  std::int64_t t_;
  Floats m_;
  Floats inverse_, ratio_;
  Flags active_, sleeping_;
};

/// `setup` as it is for `layout`, whose parameters' cells are parameters.
ParameterLayout cells_as_parameters(const ParameterLayout& layout);

}  // namespace thinwire::test::naive
