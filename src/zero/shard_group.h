// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optim/state_parts.h"
#include "optim/step_pieces.h"
#include "precision/loss_scale.h"
#include "thinwire/core/buffer.h"
#include "thinwire/optim/update_rule.h"
#include "thinwire/zero/zero_optimizer.h"
#include "zero/gradient_reduction.h"
#include "zero/wire/gradients.h"
#include "zero/wire/replicas.h"

namespace thinwire::zero {

/// Arguments of a ShardGroup. They must outlive it.
struct ShardGroupParts {
  comm::Communicator& comm;
  const ParameterLayout& layout;
  const MakeRule& make_rule;
  View params;
  ConstView initial;  ///< Source of the masters.
  const ZeroOptions& options;
  std::vector<std::size_t> groups{};
  /// Range of the flat array that this group shards, of one dtype. If its size
  /// is 0, the group shards the whole array.
  Range part{};
  /// Whether these are the fp32 parameters of a 16-bit model. `options` then
  /// has the dtypes of fp32 parameters, and states call them "masters".
  bool is_wide = false;
  int batch_ranks = 1;
  const precision::LossScale& scale;
  ThreadPool& pool;
};

/// Returns the number of cells of the grid of sums in a rank's pieces.
[[nodiscard]] std::size_t num_cells(const ShardLayout& shards, int rank);
/// Returns the sum of all ranks' squares, added in flat order. squares[r] holds
/// the sums of rank r's cells.
[[nodiscard]] double sum_in_order(
    const ShardLayout& shards,
    std::span<const std::span<const double>> squares);

/// A step, and the factor for reduced gradients.
struct ShardStep {
  std::int64_t number = 0;
  float grad_scale = 1;
};

/// Parameters that are sharded over one group of ranks: the reduction of their
/// gradients, and the masters and states of this rank's shard.
class ShardGroup {
 public:
  explicit ShardGroup(const ShardGroupParts& parts);

  [[nodiscard]] const ShardLayout& shards() const noexcept { return shards_; }
  [[nodiscard]] GradientReduction& gradients() noexcept { return *gradients_; }
  [[nodiscard]] optim::UpdateRule& rule() const noexcept { return *rule_; }
  [[nodiscard]] comm::Communicator& comm() const noexcept { return comm_; }
  /// Returns whether gradients are fp32, independently of other groups.
  [[nodiscard]] bool is_wide() const noexcept { return is_wide_; }
  /// Returns whether the parameter belongs to this group.
  [[nodiscard]] bool holds(std::size_t parameter) const {
    return holds_[parameter];
  }

  /// Returns the sums of squares of this rank's reduced gradients, without
  /// elements `uncounted` of the model. There is one sum per cell of the grid
  /// and piece, in flat order.
  [[nodiscard]] std::vector<double> squares(std::span<const Range> uncounted,
                                            ThreadPool& pool);
  /// Writes the coefficients of this group's parameters in the last step, by
  /// their index in the model's layout. Does nothing before the first step or
  /// if the rule needs no norms.
  void put_lamb_coeffs(std::span<double> coeffs) const;
  /// Returns the first parameter for which this rank owns a non-finite
  /// gradient, or -1.
  [[nodiscard]] std::int64_t first_nonfinite();

  /// Adds residuals restored from a state of several ranks to the reduced
  /// gradients. Only a group of one rank has such residuals, and adds them
  /// once.
  void add_restored_residuals(double loss_scale);
  /// Ends a step, which was either applied or skipped. Returns whether
  /// residuals were set to 0.
  bool settle(bool is_applied);

  /// Updates this rank's shard and gathers the parameters, bucket by bucket.
  /// Passes each non-empty bucket to `tell` when it has arrived. Collective.
  void update(const ShardStep& step, ThreadPool& pool, optim::StepMeter& meter,
              const optim::FinalRange& tell);
  /// Gathers parameters from their owners after a state was adopted.
  /// Collective.
  void gather_parameters();

  /// Return and set "param", "grad" or a state of a parameter. read() is
  /// collective.
  [[nodiscard]] std::vector<float> read(std::size_t parameter,
                                        std::string_view what);
  void write(std::size_t parameter, std::string_view what,
             std::span<const float> values);
  void set_masters(ConstView params);
  /// Describes this rank's shard: masters and the arrays of the rule.
  [[nodiscard]] optim::State state();
  /// Checks a state like Optimizer::adopt(). Local.
  [[nodiscard]] optim::Adoption adopt(StateDict& state);

 private:
  // Cells in which a rule's norms are measured, and the order in which the sums
  // are added.
  struct NormPlan {
    // Largest number of adjacent cells of a piece that one thread measures at a
    // time.
    static constexpr std::size_t kMostCells = 64;
    struct Run {
      std::size_t bucket = 0;
      Range part{};  // in the piece
      std::size_t first_cell = 0;
      std::size_t num_cells = 0;
    };
    std::vector<optim::NormCell> own;  // in the rule's layout
    std::vector<Run> runs;
    std::vector<std::size_t> counts;   // cells per rank
    std::vector<optim::NormCell> all;  // of the whole layout, in flat order
    std::vector<std::size_t> places;   // of `all` among the gathered sums
  };

  void make_reduction(const ShardGroupParts& parts);
  void make_masters(const ZeroOptions& options);
  void fill_masters(ConstView params);
  // Lists the parts of the state that the rule does not list.
  void list(optim::StateParts& parts);
  void list_residuals(optim::StateParts& parts);
  void list_replicas(optim::StateParts& parts);
  void list_own_params(optim::StateParts& parts, const char* name,
                       bool are_parameters = false);
  void read_own_params(Range range, View to) const;
  [[nodiscard]] std::vector<Range> shard_ranges() const;
  [[nodiscard]] NormPlan plan_norms() const;
  [[nodiscard]] bool has_named_masters() const {
    return has_masters_ || is_wide_;
  }
  [[nodiscard]] Range own(std::size_t bucket) const;
  [[nodiscard]] std::size_t position(std::size_t bucket) const;
  [[nodiscard]] View own_params(std::size_t bucket) const;
  [[nodiscard]] optim::UpdateArrays arrays(std::size_t bucket, Range part,
                                           float grad_scale);
  void measure(std::int64_t step, float grad_scale, ThreadPool& pool,
               optim::StepMeter& meter);
  [[nodiscard]] View array(const Fragment& fragment, std::string_view what);
  void require_array(std::string_view what) const;

  comm::Communicator& comm_;
  const ParameterLayout& layout_;
  const View params_;
  const bool is_wide_;
  const ShardLayout shards_;
  const std::vector<Fragment> fragments_;  // fragments of this rank
  const ParameterLayout shard_layout_;
  const std::vector<bool> holds_;
  const std::vector<Range> units_;  // parameters of this group
  std::unique_ptr<GradientReduction> gradients_;
  std::unique_ptr<Replicas> replicas_;  // null: parameters are gathered
  int bits_up_ = 0;                   // requested bits, kept even with one rank
  Buffer restored_residuals_;         // fp32, until applied; only with one rank
  bool has_added_residuals_ = false;  // whether this window has them
  const std::unique_ptr<optim::UpdateRule> rule_;
  NormPlan norm_plan_;                  // if the rule needs norms
  std::vector<optim::NormSums> norms_;  // of parameters, in the last step
  bool has_masters_ = false;            // if false, parameters are the masters
  bool has_own_replicas_ = false;       // whether replicas come from a state
  Buffer masters_;
};

}  // namespace thinwire::zero
