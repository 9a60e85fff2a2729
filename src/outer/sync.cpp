// SPDX-License-Identifier: Apache-2.0
// Exchanges between ranks: agreements, comparisons and syncs.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/pooled_norm.h"
#include "optim/checks.h"
#include "optim/verification.h"
#include "outer/impl.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::outer {

using optim::Phase;
using optim::StepReport;

namespace {

// Returns the cosine between the mean change y and the previous momentum. An
// owner computes y as u - momentum u_before.
double change_along(comm::Communicator& comm, std::span<const float> before,
                    std::span<const float> u, double momentum, double norm,
                    optim::StepMeter& meter) {
  struct Sums {
    double products = 0;
    double squares = 0;
  };
  Sums own;
  for (std::size_t i = 0; i < u.size(); ++i) {
    own.products += (u[i] - momentum * before[i]) * before[i];
    own.squares += double{before[i]} * before[i];
  }
  std::vector<Sums> all(static_cast<std::size_t>(comm.size()));
  meter.waiting([&] {
    comm.all_gather(ConstView(&own, sizeof own, DType::kUInt8),
                    View(all.data(), all.size() * sizeof own, DType::kUInt8));
  });
  Sums sum;
  for (const Sums& of_rank : all) {
    sum.products += of_rank.products;
    sum.squares += of_rank.squares;
  }
  const double norms = std::sqrt(sum.squares) * norm;
  return norms == 0 ? 0 : sum.products / norms;
}

}  // namespace

// d_i = a - p_i
void OuterLoop::Impl::subtract_from_anchor(ConstView now, View difference) {
  const auto a = anchor.as<float>();
  const auto p = now.as<float>();
  const auto d = difference.as<float>();
  pool.for_ranges(d.size(), kernels::kSumChunk,
                  [&](std::size_t begin, std::size_t end) {
                    for (std::size_t i = begin; i < end; ++i)
                      d[i] = a[i] - p[i];
                  });
}

void OuterLoop::Impl::sync(View now, View scratch, bool in_step,
                           optim::StepMeter& meter) {
  StepReport& report = meter.report();
  Buffer memory;
  if (scratch.empty()) {
    memory = Buffer(layout.size(), DType::kFloat32, Fill::kNone);
    scratch = memory.view();
  }
  subtract_from_anchor(now, scratch);
  const optim::Agreement agreement =
      agree(comm,
            {.squares = kernels::sum_of_squares(pool, scratch),
             .left_out = left_out_a_step},
            in_step, meter);
  const auto stop = [&](const std::string& what) {
    throw Error(ErrorCode::kNonFinite,
                fmt::format("sync after {} local steps: {}, so load the last "
                            "checkpoint",
                            schedule.behind, what));
  };
  if (agreement.nonfinite_rank >= 0)
    stop(fmt::format(
        "parameters of rank {} are not finite; nothing was exchanged",
        agreement.nonfinite_rank));
  const Buffer momentum_before = own_momentum();
  // y, u, m and a are computed by zero::ZeroOptimizer with optim::Nesterov
  const StepReport of_owners =
      owners->step({.params = anchor.view(), .grads = scratch});
  if (!of_owners.applied) stop("the mean of the ranks' changes is not finite");
  report.exchange_seconds += of_owners.exchange_seconds;
  report.phase = Phase::kCompressed;
  if (agreement.left_out_rank >= 0)
    report.nonfinite_rank = agreement.left_out_rank;
  report.drift =
      agreement.rms_norm == 0 ? 0 : of_owners.grad_norm / agreement.rms_norm;
  changed = agreement.rms_norm;
  const Buffer momentum = own_momentum();
  report.rho =
      change_along(comm, momentum_before.as<float>(), momentum.as<float>(),
                   options.momentum, of_owners.grad_norm, meter);
  // p_i = a
  kernels::convert(anchor.view(), now);
  left_out_a_step = false;
  schedule.behind = 0;
  ++schedule.syncs;
  verify(anchor.view());
}

void OuterLoop::Impl::verify(ConstView equal) {
  if (std::exchange(verification_is_due, false)) require_equal(equal);
}

void OuterLoop::Impl::require_equal(ConstView equal) {
  std::string rates;
  const optim::ParameterGroups& of_inner = inner->groups();
  for (std::size_t g = 0; g < of_inner.num_groups(); ++g)
    rates += fmt::format("learning rate of group {}: {}\n", g,
                         of_inner.learning_rate(g));
  optim::verify_same(
      comm, pool, layout, equal,
      fmt::format("step {}\nsyncs {} interval {} counter {}\n{}{}{}",
                  counts.steps, schedule.syncs, schedule.length,
                  schedule.counter, rates, options.describe(),
                  exchange.describe()));
}

optim::Agreement OuterLoop::Impl::agree(comm::Communicator& ranks,
                                        optim::GradientSummary own,
                                        bool in_step, optim::StepMeter& meter) {
  // One number identifies this object, the step and the call. Inside a host the
  // number also covers learning rates, which verify() compares between hosts.
  const auto place =
      static_cast<std::uint32_t>(2 * counts.steps + (in_step ? 1 : 0));
  own.optimizer = number + 0x9E3779B9u * place;
  const std::size_t compared =
      &ranks == &comm ? 0 : inner->groups().num_groups();
  for (std::size_t g = 0; g < compared; ++g) {
    const auto rate =
        std::bit_cast<std::uint64_t>(inner->groups().learning_rate(g));
    own.optimizer =
        own.optimizer * 31 + static_cast<std::uint32_t>(rate ^ (rate >> 32));
  }
  try {
    return optim::agree(ranks, own, meter);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kFailedPrecondition) throw;
    throw Error(error.code(),
                fmt::format("outer loop: rank {} is in {} after {} steps, and "
                            "another rank is in another call or step, or has "
                            "other learning rates; all ranks must make the "
                            "same calls of step(), synchronize() and "
                            "evaluations, with the same learning rates",
                            comm.rank(), in_step ? "step()" : "synchronize()",
                            counts.steps));
  }
}

void OuterLoop::Impl::synchronize(View now) {
  require_view("params", now, layout.size(), true, false);
  if (schedule.behind == 0) return;
  begin_local_steps(now);
  StepReport report;
  optim::StepMeter meter(comm, report);
  // Another rank of this host may be waiting for this agreement in a local
  // step.
  if (inside)
    static_cast<void>(agree(*groups->inside, {}, /*in_step=*/false, meter));
  sync(now, {}, /*in_step=*/false, meter);
  unreported_rank = report.nonfinite_rank;
}

}  // namespace thinwire::outer
