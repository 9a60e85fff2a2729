// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optim/exact_exchange.h"
#include "precision/loss_scale.h"
#include "thinwire/core/buffer.h"
#include "thinwire/optim/update_rule.h"
#include "thinwire/zero/zero_optimizer.h"
#include "zero/gradient_reduction.h"
#include "zero/wire/gradients.h"
#include "zero/wire/replicas.h"

namespace thinwire::zero {

/// What a ShardGroup is made of; all of it outlives it.
struct ShardGroupParts {
  comm::Communicator& comm;
  const ParameterLayout& layout;
  const MakeRule& make_rule;
  View params;
  ConstView initial;  ///< What masters are made of.
  const ZeroOptions& options;
  CopyEngine* copies = nullptr;  ///< Null: nothing is offloaded.
  std::vector<std::size_t> groups{};
  Range part{};  ///< Of the flat array, of one dtype; of size 0: all of it.
  /// fp32 parameters of a model of 16 bits: `options` are theirs, and states
  /// call them masters, as those of the others.
  bool is_wide = false;
  int batch_ranks = 1;
  const precision::LossScale& scale;
  ThreadPool& pool;
};

/// Cells of the grid in a rank's pieces, each of which has a sum of squares.
[[nodiscard]] std::size_t num_cells(const ShardLayout& shards, int rank);
/// All ranks' squares together, added in flat order; `squares[r]` are rank r's.
[[nodiscard]] double sum_in_order(
    const ShardLayout& shards,
    std::span<const std::span<const double>> squares);

/// A step, and what it multiplies reduced gradients by.
struct ShardStep {
  std::int64_t number = 0;
  float grad_scale = 1;
};

/// The parameters that are sharded over one group of ranks: their gradients on
/// the way, and masters and states of this rank's shard.
class ShardGroup {
 public:
  explicit ShardGroup(const ShardGroupParts& parts);

  [[nodiscard]] const ShardLayout& shards() const noexcept { return shards_; }
  [[nodiscard]] GradientReduction& gradients() noexcept { return *gradients_; }
  [[nodiscard]] optim::UpdateRule& rule() const;
  [[nodiscard]] comm::Communicator& comm() const noexcept { return comm_; }
  /// Whether gradients are fp32, whatever the others' are.
  [[nodiscard]] bool is_wide() const noexcept { return is_wide_; }
  /// Whether this parameter is one of its own.
  [[nodiscard]] bool holds(std::size_t parameter) const {
    return holds_[parameter];
  }

  /// Sums of squares of this rank's reduced gradients, one per cell of the grid
  /// and piece, in flat order.
  [[nodiscard]] std::vector<double> squares(ThreadPool& pool);
  /// Of a rule that needs norms: the coefficients of this group's parameters in
  /// the last step, by their number in the model's layout; before it nothing.
  void put_lamb_coeffs(std::span<double> coeffs) const;
  /// The first parameter of which this rank owns a gradient that is not finite;
  /// -1.
  [[nodiscard]] std::int64_t first_nonfinite();

  /// After gradients have come: a group of one, which owes what larger ones
  /// have kept back, adds it to them.
  void pay_debt(double loss_scale);
  /// The step has taken the gradients, or was skipped. True: residuals became
  /// 0.
  bool settle(bool is_applied);

  /// Collective: updates this rank's shard and gathers the parameters, bucket
  /// by bucket. Passes each bucket that is there to `tell`, unless it is empty.
  void update(const ShardStep& step, ThreadPool& pool, optim::StepMeter& meter,
              const optim::FinalRange& tell);
  /// Collective, after a state was adopted: parameters from their owners.
  void gather_parameters();

  /// "param", "grad" or a state: collective.
  [[nodiscard]] std::vector<float> read(std::size_t parameter,
                                        std::string_view what);
  void write(std::size_t parameter, std::string_view what,
             std::span<const float> values);
  void set_masters(ConstView params);
  void offload_states();
  void reload_states();
  /// Describes its shard: masters, and what the rule keeps.
  [[nodiscard]] optim::State state() const;
  /// Local: as Optimizer::adopt.
  [[nodiscard]] optim::Adoption adopt(StateDict& state);

 private:
  // Over which cells a rule with norms is measured, and how sums come together.
  struct NormPlan {
    // What one thread takes: so many neighbours in one piece.
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
    std::vector<std::size_t> places;   // of those among what ranks send
  };

  void make_reduction(const ShardGroupParts& parts);
  void make_masters(const ZeroOptions& options);
  void fill_masters(ConstView params);
  void add_wire(optim::State& state) const;
  optim::StateArray& add_own_params(optim::State& state,
                                    const char* name) const;
  void read_own_params(Range range, View to) const;
  [[nodiscard]] optim::Adoption adopt_masters(StateDict& state);
  [[nodiscard]] optim::Adoption adopt_as_parameters(StateDict& state);
  [[nodiscard]] optim::Adoption adopt_as_params(StateDict& state,
                                                const char* name);
  [[nodiscard]] optim::Adoption adopt_wire(StateDict& state);
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
  void require_states() const;
  void require_array(std::string_view what) const;

  comm::Communicator& comm_;
  const ParameterLayout& layout_;
  const MakeRule make_rule_;
  const View params_;
  CopyEngine* const copies_;
  const bool is_wide_;
  const ShardLayout shards_;
  const std::vector<Fragment> fragments_;  // this rank's
  const ParameterLayout shard_layout_;
  const std::vector<bool> holds_;
  const std::vector<Range> units_;  // those that it holds
  std::unique_ptr<GradientReduction> gradients_;
  std::unique_ptr<LowBitReplicas> replicas_;  // null: parameters are gathered
  int bits_up_ = 0;        // asked for, also in a group of one, ...
  Buffer debt_;            // ... which may have adopted residuals, fp32
  bool has_paid_ = false;  // in this window
  std::unique_ptr<optim::UpdateRule> rule_;  // null while states are away
  NormPlan norm_plan_;                       // if the rule needs norms
  std::vector<optim::NormSums> norms_;       // of parameters, in the last step
  StateDict parked_;
  std::vector<double> parked_decays_;  // of its groups: options are no state
  bool has_masters_ = false;           // else parameters are their own
  bool has_mirror_ = false;
  bool has_own_replicas_ = false;  // adopted ones, not made of masters
  Buffer masters_;
  Buffer mirror_;  // offload: updated parameters of 16 bits, to be copied
};

}  // namespace thinwire::zero
