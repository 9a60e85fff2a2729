// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/parameter_groups.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The flat arrays that a rule works on: of all parameters, or of a part.
struct UpdateArrays {
  View params;           ///< As in StepInput.
  ConstView grads;       ///< fp32, fp16 or bf16.
  float grad_scale = 1;  ///< Multiplies the gradient first.
  View low_precision{};  ///< As in StepInput.
};

/// Elements of one parameter that lie in one cell of the grid on which the
/// model's flat array is summed (kernels::kSumChunk).
struct NormCell {
  std::size_t parameter = 0;  ///< Its number in the rule's layout.
  Range range;                ///< Of the rule's layout, which may be a shard's.

  bool operator==(const NormCell&) const = default;
};

/// Sums of squares over a cell or over a whole parameter.
struct NormSums {
  double params = 0;
  double update = 0;

  NormSums& operator+=(const NormSums& other) noexcept {
    params += other.params;
    update += other.update;
    return *this;
  }
  bool operator==(const NormSums&) const = default;
};

/// One step of arithmetic on flat arrays; knows nothing of ranks. Local. A rule
/// of a shard has a layout of the pieces that lie there, and takes a step by
///   if needs_norms():  measure() every cell, add up the parameters' sums over
///                      all shards, set_norms()
///   apply_part()
class UpdateRule : public ParameterGroups {
 public:
  /// "adam": for messages and saved state.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual const ParameterLayout& layout() const noexcept = 0;
  /// One line per group with every option, weight decay as it is now: what
  /// ranks compare before they first exchange.
  [[nodiscard]] virtual std::string describe() const = 0;

  /// Applies step number `step` (1, 2, ...) to all parameters, shared out over
  /// the pool's threads; the same bits for any number of them.
  virtual void apply(std::int64_t step, const UpdateArrays& arrays,
                     ThreadPool& pool) {
    apply_part(step, {0, layout().size()}, arrays, pool);
  }
  /// The same for elements `part` of the layout, of any parameters and groups.
  /// `arrays` are those elements' views; states stay where they are. If
  /// needs_norms(), this is the second pass. Throws Error(kInvalidArgument) if
  /// sizes do not fit, Error(kFailedPrecondition) if norms are missing.
  virtual void apply_part(std::int64_t step, Range part,
                          const UpdateArrays& arrays, ThreadPool& pool) = 0;

  /// A step takes norms of whole parameters.
  [[nodiscard]] virtual bool needs_norms() const noexcept { return false; }
  /// The first pass over `cells`, neighbours in the layout's order: updates
  /// their moments and writes the sums of each. `arrays` are the views of their
  /// elements. Several threads may measure different cells at once.
  virtual void measure(std::int64_t /*step*/,
                       std::span<const NormCell> /*cells*/,
                       const UpdateArrays& /*arrays*/,
                       std::span<NormSums> /*sums*/) {}
  /// The sums of every parameter of the layout as a whole: its cells', wherever
  /// they were measured, added in the order of the model's flat array.
  virtual void set_norms(std::int64_t /*step*/,
                         std::span<const NormSums> /*parameters*/) {}

  /// The factor by which the last step multiplied the learning rate of each
  /// parameter of the layout; empty if the rule has none.
  [[nodiscard]] virtual std::vector<double> lamb_coeffs() const { return {}; }
  /// That factor for a parameter of this group with these sums.
  [[nodiscard]] virtual double lamb_coeff(std::size_t /*group*/,
                                          const NormSums& /*sums*/) const {
    return 1;
  }

  /// Whether parameters may be of this dtype.
  [[nodiscard]] virtual bool takes(DType params) const noexcept {
    return params == DType::kFloat32;
  }

  /// A state's array by its name in add_to(), which has the layout's elements.
  /// Throws Error(kInvalidArgument) naming those there are.
  [[nodiscard]] virtual View state(std::string_view key) = 0;
  /// Describes its arrays, which must stay as they are as long as `state` is
  /// used. The layout's elements are `elements` of the model, in this order,
  /// and lie on the ranks as `sharing` says.
  virtual void add_to(State& state, Sharing sharing,
                      const std::vector<Range>& elements) const = 0;
  /// Local: checks those arrays in `state`, which has the keys of
  /// copy_of(State), and takes them out of it. Moments of 16 bits are widened
  /// where fp32 is kept. Throws Error(kCorruptCheckpoint) naming what does not
  /// fit, before anything changes.
  [[nodiscard]] virtual Adoption adopt(StateDict& state) = 0;
};

/// Makes the rule for some parameters: for a rank's shard, or for experts. The
/// layout that it is given has the groups of the whole.
using MakeRule =
    std::function<std::unique_ptr<UpdateRule>(const ParameterLayout&)>;

}  // namespace thinwire::optim
