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
  /// Range of the flat array that this group shards, of one dtype; of size 0
  /// for all of it.
  Range part{};
  /// Whether these are the fp32 parameters of a model of 16 bits. `options`
  /// then has the types of fp32 parameters, and states name them "masters".
  bool is_wide = false;
  int batch_ranks = 1;
  const precision::LossScale& scale;
  ThreadPool& pool;
};

/// Returns the number of cells of the grid of sums in a rank's pieces.
[[nodiscard]] std::size_t num_cells(const ShardLayout& shards, int rank);
/// Returns the sum of all ranks' squares, added in flat order. `squares[r]` are
/// those of rank r's cells.
[[nodiscard]] double sum_in_order(
    const ShardLayout& shards,
    std::span<const std::span<const double>> squares);

/// A step, and the factor of reduced gradients.
struct ShardStep {
  std::int64_t number = 0;
  float grad_scale = 1;
};

/// Parameters that are sharded over one group of ranks: the reduction of their
/// gradients, and masters and states of this rank's shard.
class ShardGroup {
 public:
  explicit ShardGroup(const ShardGroupParts& parts);

  [[nodiscard]] const ShardLayout& shards() const noexcept { return shards_; }
  [[nodiscard]] GradientReduction& gradients() noexcept { return *gradients_; }
  [[nodiscard]] optim::UpdateRule& rule() const noexcept { return *rule_; }
  [[nodiscard]] comm::Communicator& comm() const noexcept { return comm_; }
  /// Returns whether gradients are fp32, whatever those of other groups are.
  [[nodiscard]] bool is_wide() const noexcept { return is_wide_; }
  /// Returns whether the parameter belongs to this group.
  [[nodiscard]] bool holds(std::size_t parameter) const {
    return holds_[parameter];
  }

  /// Returns the sums of squares of this rank's reduced gradients, one per cell
  /// of the grid and piece, in flat order. Elements `uncounted` of the model
  /// are left out.
  [[nodiscard]] std::vector<double> squares(std::span<const Range> uncounted,
                                            ThreadPool& pool);
  /// Writes the coefficients of this group's parameters in the last step, by
  /// their index in the model's layout. Does nothing before the first step, and
  /// unless the rule needs norms.
  void put_lamb_coeffs(std::span<double> coeffs) const;
  /// Returns the first parameter for which this rank owns a non-finite
  /// gradient, or -1.
  [[nodiscard]] std::int64_t first_nonfinite();

  /// Adds residuals restored from a state of several ranks to the reduced
  /// gradients. Only a group of one rank has such residuals, once.
  void add_restored_residuals(double loss_scale);
  /// Ends a step that was applied or skipped. Returns whether residuals became
  /// 0.
  bool settle(bool is_applied);

  /// Updates this rank's shard and gathers the parameters, bucket by bucket.
  /// Passes each bucket that has arrived to `tell`, unless it is empty.
  /// Collective.
  void update(const ShardStep& step, ThreadPool& pool, optim::StepMeter& meter,
              const optim::FinalRange& tell);
  /// Gathers parameters from their owners, after a state was adopted.
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
  // Cells in which the norms of a rule are measured, and the order of their
  // sums.
  struct NormPlan {
    // Neighbouring cells of one piece that one thread measures at a time.
    static constexpr std::size_t kMostCells = 64;
    struct Run {
      std::size_t bucket = 0;
      Range part{};  // of the piece
      std::size_t first_cell = 0;
      std::size_t num_cells = 0;
    };
    std::vector<optim::NormCell> own;  // of the rule's layout
    std::vector<Run> runs;
    std::vector<std::size_t> counts;   // cells per rank
    std::vector<optim::NormCell> all;  // of the whole layout, in flat order
    std::vector<std::size_t> places;   // of `all` among the gathered sums
  };

  void make_reduction(const ShardGroupParts& parts);
  void make_masters(const ZeroOptions& options);
  void fill_masters(ConstView params);
  // Lists what the rule does not.
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
  const std::vector<Fragment> fragments_;  // this rank's
  const ParameterLayout shard_layout_;
  const std::vector<bool> holds_;
  const std::vector<Range> units_;  // parameters of this group
  std::unique_ptr<GradientReduction> gradients_;
  std::unique_ptr<Replicas> replicas_;  // null: parameters are gathered
  int bits_up_ = 0;                   // requested bits, kept even with one rank
  Buffer restored_residuals_;         // fp32, not yet applied; one rank only
  bool has_added_residuals_ = false;  // in this window
  const std::unique_ptr<optim::UpdateRule> rule_;
  NormPlan norm_plan_;                  // if the rule needs norms
  std::vector<optim::NormSums> norms_;  // of parameters, in the last step
  bool has_masters_ = false;            // if not, parameters are the masters
  bool has_own_replicas_ = false;       // replicas come from a state
  Buffer masters_;
};

}  // namespace thinwire::zero
