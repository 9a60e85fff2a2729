// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/outer/outer_options.h"

namespace thinwire::outer {

/// Creates the inner optimizer of a rank, with a communicator that contains
/// only this rank.
using MakeInner =
    std::function<std::unique_ptr<optim::Optimizer>(comm::Communicator& alone)>;

/// Local training with infrequent exchanges of parameters. Each rank takes
/// sync_every steps of an inner optimizer without communication. Then ranks
/// average the changes that these steps have made. The anchor a holds the
/// parameters of the last sync. Every element has one owner, which keeps its
/// exact value m and the outer momentum u:
///   warm-up   g = mean over ranks of g_i;  inner step with g
///   local     inner step with g_i, clipped by rho |g_i|
///   sync      d_i = a - p_i;  y = low-bit mean over ranks of d_i + e_i
///             u = momentum u + y;  m = m - learning_rate (y + momentum u)
///             a = a + low-bit form of (m - a);  p_i = a
/// e_i is the error feedback of gradients sent up; m - a is that of results
/// sent down. rho is the ratio |g| / rms |g_i|, measured in the warm-up. A
/// zero::ZeroOptimizer performs the exchange and the update of a sync. Its
/// shards define the owners.
///
/// In a flat exchange, only the first local step sends anything: it compares
/// the ranks' parameters. With fp16, ranks also agree in each local step. In a
/// hierarchical exchange a host is one worker whose ranks average their
/// gradients exactly in every local step, so i counts hosts. With
/// ExchangeOptions::skip_nonfinite, a rank whose gradient is not finite takes
/// its local step with a gradient of 0. The next sync reports that rank as
/// StepReport::nonfinite_rank. In local steps grad_norm and clip_factor of a
/// report are this worker's own.
///
/// Source: Douillard et al., "DiLoCo", arXiv:2311.08105. Departures (error
/// feedback in both directions, a sharded outer optimizer, an exact common
/// warm-up): docs/algorithms/outer-loop.md.
class OuterLoop final : public optim::Optimizer {
 public:
  /// Creates the inner optimizer and the owners. Collective. `comm` must
  /// outlive this object. The workers are the hosts of `comm`, or its ranks if
  /// it is flat. Steps use num_threads, bucket_elements, verify_every and
  /// skip_nonfinite of `exchange`. step() needs fp32 parameters, which must be
  /// equal on all ranks in the first step. During local steps, state() reads
  /// the parameters of the last step(), so that memory must remain valid.
  ///
  /// Bytes per parameter in addition to the inner optimizer's: 4 for the
  /// anchor, 8/W for the owner's values and momentum, and records. The residual
  /// takes 4, divided by the ranks of a host if the exchange is hierarchical.
  ///
  /// Throws Error(kInvalidArgument) for an option out of range. If ranks pass
  /// different arguments, all ranks throw it.
  OuterLoop(comm::Communicator& comm, const ParameterLayout& layout,
            const MakeInner& make_inner, const OuterOptions& options,
            const optim::ExchangeOptions& exchange = {});
  ~OuterLoop() override;

  [[nodiscard]] const OuterOptions& options() const noexcept;
  /// Returns the number of syncs so far.
  [[nodiscard]] std::int64_t syncs() const noexcept;

  using Optimizer::step;
  /// Takes a step. In a sync, throws Error(kNonFinite) on all ranks in two
  /// cases. If any rank's parameters are not finite, nothing has been
  /// exchanged. If only the mean change is not finite, the exchange has taken
  /// place.
  optim::StepReport step(const optim::StepInput& input) override;
  using Optimizer::groups;
  /// Returns the inner optimizer's groups.
  [[nodiscard]] optim::ParameterGroups& groups() override;
  [[nodiscard]] optim::Progress progress() const override;
  [[nodiscard]] double residual_ratio() const override;
  using Optimizer::local_steps;
  /// Returns the interface to local steps. Its synchronize() is a sync outside
  /// the schedule, after which a new interval begins.
  [[nodiscard]] optim::LocalSteps* local_steps() override;
  using Optimizer::freeze;
  [[nodiscard]] optim::FreezeStage* freeze() override;
  void set_masters(ConstView params) override;
  /// Returns the inner optimizer's state, whose values differ between ranks
  /// after the warm-up. The state then also contains the anchor, as the array
  /// origin [n]. All other added names begin with "outer.", for example
  /// outer.local_params [n], this rank's parameters during local steps.
  [[nodiscard]] optim::State state() const override;
  /// Adopts a state, also of the inner optimizer alone. Adam and LAMB accept a
  /// state of an OuterLoop.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::outer
