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

/// Flat arrays that a rule updates, of all parameters or of a part.
struct UpdateArrays {
  View params;           ///< See StepInput.
  ConstView grads;       ///< Gradients in fp32, fp16 or bf16.
  float grad_scale = 1;  ///< Factor on the gradient, applied first.
  View low_precision{};  ///< See StepInput.
};

/// Elements of one parameter within one cell of the grid of sums over the
/// model's flat array (kernels::kSumChunk).
struct NormCell {
  std::size_t parameter = 0;  ///< Index in the rule's layout.
  Range range;  ///< Range of the rule's layout, which may be a shard's.

  bool operator==(const NormCell&) const = default;
};

/// Sums of squares of one cell, or of a whole parameter.
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

/// Arithmetic of one step on flat arrays, local and independent of ranks. A
/// shard's rule has a layout of the pieces in the shard, and takes a step as
/// follows:
///   if needs_norms():  measure() every cell, add up the parameters' sums over
///                      all shards, set_norms()
///   apply_part()
class UpdateRule : public ParameterGroups {
 public:
  /// Returns a name such as "adam", for messages and saved state.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual const ParameterLayout& layout() const noexcept = 0;
  /// Returns one line per group with every option and the present weight decay.
  /// Ranks compare these lines before their first exchange.
  [[nodiscard]] virtual std::string describe() const = 0;

  /// Applies step number `step` (1, 2, ...) to all parameters, distributed over
  /// the pool's threads. The bits do not depend on the number of threads.
  virtual void apply(std::int64_t step, const UpdateArrays& arrays,
                     ThreadPool& pool) {
    apply_part(step, {0, layout().size()}, arrays, pool);
  }
  /// Applies the step to elements `part` of the layout, of any parameters and
  /// groups. `arrays` are the views of those elements; states stay in place. If
  /// needs_norms(), this is the second pass. Throws Error(kInvalidArgument) if
  /// sizes do not fit, and Error(kFailedPrecondition) if norms are missing.
  virtual void apply_part(std::int64_t step, Range part,
                          const UpdateArrays& arrays, ThreadPool& pool) = 0;

  /// Returns whether apply_part() can apply the step part by part.
  [[nodiscard]] virtual bool takes_parts() const noexcept {
    return !needs_norms();
  }

  /// Returns whether a step needs norms of whole parameters.
  [[nodiscard]] virtual bool needs_norms() const noexcept { return false; }
  /// Runs the first pass over `cells`, which are adjacent in the layout's
  /// order. Updates their moments and writes the sums of each cell. `arrays`
  /// holds the views of their elements. Several threads may measure different
  /// cells at once.
  virtual void measure(std::int64_t /*step*/,
                       std::span<const NormCell> /*cells*/,
                       const UpdateArrays& /*arrays*/,
                       std::span<NormSums> /*sums*/) {}
  /// Sets the sums of every whole parameter of the layout. Each is the sum over
  /// the parameter's cells, on any rank, in the order of the model's flat
  /// array.
  virtual void set_norms(std::int64_t /*step*/,
                         std::span<const NormSums> /*parameters*/) {}

  /// Returns the factors by which the last step multiplied the learning rate of
  /// each parameter of the layout; empty if the rule has none.
  [[nodiscard]] virtual std::vector<double> lamb_coeffs() const { return {}; }
  /// Returns the factor for a parameter of this group with these sums.
  [[nodiscard]] virtual double lamb_coeff(std::size_t /*group*/,
                                          const NormSums& /*sums*/) const {
    return 1;
  }

  /// Returns whether parameters may have this dtype.
  [[nodiscard]] virtual bool takes(DType params) const noexcept {
    return params == DType::kFloat32;
  }

  /// Returns an array of the state, with the layout's elements, by the name
  /// that add_to() gives it. Throws Error(kInvalidArgument) with the existing
  /// names.
  [[nodiscard]] virtual View state(std::string_view key) = 0;
  /// Adds the rule's arrays to `state`; they must not change while `state` is
  /// used. `elements` are the model's elements that the layout has, in this
  /// order, and `sharing` is their distribution over the ranks.
  virtual void add_to(State& state, Sharing sharing,
                      const std::vector<Range>& elements) const = 0;
  /// Checks the rule's arrays in `state`, which has the keys of copy_of(State),
  /// and takes them. Local. 16-bit moments are widened if this rule keeps fp32.
  /// Throws Error(kCorruptCheckpoint) naming the part that does not fit, before
  /// anything changes.
  [[nodiscard]] virtual Adoption adopt(StateDict& state) = 0;
};

/// Creates the rule for some parameters, such as a rank's shard or experts. Its
/// argument is their layout, which has the groups of the whole model.
using MakeRule =
    std::function<std::unique_ptr<UpdateRule>(const ParameterLayout&)>;

}  // namespace thinwire::optim
