// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/zero_one_adam.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "optim/low_bit_options.h"
#include "optim/require.h"
#include "optim/zero_one_adam_impl.h"
#include "thinwire/kernels/local_step.h"

namespace thinwire::optim {

using kernels::AdamCoefficients;
using kernels::Signs;

namespace {

struct ZeroOneAdamImpl final : LowBitOptimizer::Impl {
  ZeroOneAdamImpl(comm::Communicator& c, const ParameterLayout& layout,
                  const ZeroOneAdamOptions& o)
      : Impl(c, layout, settings_of(o)),
        options(o),
        schedule(o),
        lrs(layout.num_groups()),
        decay(layout.num_groups(), 1) {
    denominator = Buffer::of<float>(layout.size());
  }

  ZeroOneAdamOptions options;
  ZeroOneSchedule schedule;
  std::int64_t var_updates = 0;
  // From the freeze on.
  Buffer origin;                 // theta: parameters at the last sync
  Buffer accumulator;            // u: this rank's updates since
  bool accumulated = false;      // false: u is 0 everywhere, whatever it holds
  std::vector<double> lrs;       // per group, learning rates since
  std::vector<double> decay;     // delta, per group: decay since
  std::vector<double> mean_lrs;  // lrs of the sync whose mean is the momentum

  // ---- one step
  void take_step(View params, View grads, StepMeter& meter,
                 StepReport& report) override {
    report.phase = phase();
    if (is_frozen())
      frozen_step(params, grads, meter, report);
    else if (report.phase == Phase::kExact)
      variance_step(params, grads, meter, report);
    else
      one_bit_step(params, grads, meter, report);
    if (report.applied && steps == options.var_freeze_step) freeze(params);
  }

  [[nodiscard]] bool is_frozen() const {
    return steps >= options.var_freeze_step;
  }

  void variance_step(View params, View grads, StepMeter& meter,
                     StepReport& report) {
    const auto grad_scale = average_exactly(grads, meter, report);
    if (!grad_scale) return;
    ++steps;
    ++var_updates;
    keep_momentum_as_values();
    const std::vector<AdamCoefficients> c = variance_coefficients(*grad_scale);
    for_blocks([&](std::size_t b) {
      const Range& at = parts.blocks.blocks()[b].values;
      const AdamCoefficients& own = c[parts.block_group[b]];
      kernels::FrozenUpdateArrays arrays = frozen_arrays(at, params);
      float* const m = adam.exp_avg().as<float>().data() + at.offset;
      float* const v = adam.exp_avg_sq().as<float>().data() + at.offset;
      float* const d = denominator.as<float>().data() + at.offset;
      kernels::moments(m, v, grads.subview(at.offset, at.size), own);
      kernels::denominator(v, d, at.size, own);
      (void)kernels::floor_denominator(d, at.size, settings.denom_floor);
      arrays.exp_avg = m;
      kernels::frozen_update(arrays, own);
    });
    // What once had a gradient keeps a variance above 0.
    if (var_updates == 1 || !active.empty()) mask_dead_elements();
    schedule.variance_updated();
  }

  // v is corrected by the number of its updates, not of steps.
  [[nodiscard]] std::vector<AdamCoefficients> variance_coefficients(
      double grad_scale) const {
    std::vector<AdamCoefficients> c = coefficients(grad_scale);
    for (std::size_t g = 0; g < c.size(); ++g)
      c[g].exp_avg_sq_scale =
          adam.coefficients(g, var_updates, 1).exp_avg_sq_scale;
    return c;
  }

  void one_bit_step(View params, View grads, StepMeter& meter,
                    StepReport& report) {
    const auto grad_scale = clip_by_estimate(grads, meter, report);
    if (!grad_scale) return;
    ++steps;
    if (options.exchanged == Exchanged::kMomentum) {
      momentum_step(params, grads, coefficients(*grad_scale), meter);
      return;
    }
    scale(grads, *grad_scale);
    if (compresses())
      meter.compressed(the_exchange(),
                       [&](auto& all) { (void)all.all_reduce(grads); });
    lone_momentum_step(params, grads);
  }

  void lone_momentum_step(View params, ConstView grads) {
    const std::vector<AdamCoefficients> c = coefficients(1);
    update_momentum(grads, c);
    for_blocks([&](std::size_t b) {
      const Range& at = parts.blocks.blocks()[b].values;
      kernels::FrozenUpdateArrays arrays = frozen_arrays(at, params);
      arrays.exp_avg = adam.exp_avg().as<float>().data() + at.offset;
      kernels::frozen_update(arrays, c[parts.block_group[b]]);
    });
  }

  static void scale(View values, double factor) {
    if (factor == 1) return;
    const auto f = static_cast<float>(factor);
    for (float& value : values.as<float>()) value *= f;
  }

  // The residuals measured momentum until now, lr times momentum from now on.
  void freeze(View params) {
    origin = copy_of(params);
    accumulator = Buffer::of<float>(params.size());
    adam.exp_avg_sq() = Buffer();
    if (exchange) exchange->clear_errors();
  }

  // ---- after the freeze
  void frozen_step(View params, View grads, StepMeter& meter,
                   StepReport& report) {
    const bool syncs = report.phase == Phase::kCompressed;
    const auto grad_scale = syncs ? clip_by_estimate(grads, meter, report)
                                  : clip_locally(grads, report);
    if (!report.applied) return;
    ++steps;
    std::vector<AdamCoefficients> c = coefficients(grad_scale.value_or(1));
    for (std::size_t g = 0; g < c.size(); ++g) {
      const double lr = adam.learning_rate(g);
      lrs[g] += lr * c[g].exp_avg_scale;
      decay[g] *= 1 - lr * c[g].decoupled_decay;
    }
    if (syncs && lr_was_above_0() && compresses()) {
      keep_momentum_of_resting_groups(grads, c);
      meter.compressed(the_exchange(), [&](auto& all) {
        sync(params, all,
             [&](std::size_t b) { return sync_input(b, grads, c); });
      });
    } else {
      if (grad_scale) local_step(params, grads, c);
      if (syncs && lr_was_above_0()) sync_alone(params);
    }
    schedule.local_step_taken();
  }

  // Without a learning rate nothing has moved: there is nothing to sync.
  [[nodiscard]] bool lr_was_above_0() const {
    return std::any_of(lrs.begin(), lrs.end(),
                       [](double sum) { return sum > 0; });
  }

  // Of this rank's own norm; nothing where its gradient is not finite.
  [[nodiscard]] std::optional<double> clip_locally(ConstView grads,
                                                   StepReport& report) {
    const double own = sum_of_squares(pool, grads);
    report.grad_norm_is_estimate = true;
    if (!std::isfinite(own)) {
      left_out_a_step = true;
      return std::nullopt;
    }
    report.grad_norm = estimated_norm(std::sqrt(own));
    report.clip_factor = clip(report.grad_norm);
    return report.clip_factor;
  }

  void local_step(View params, ConstView grads,
                  std::span<const AdamCoefficients> c) {
    if (adam.exp_avg().empty())
      adam.exp_avg() = Buffer::of<float>(adam.layout().size());
    for_blocks([&](std::size_t b) {
      const Range& at = parts.blocks.blocks()[b].values;
      const std::size_t group = parts.block_group[b];
      kernels::LocalStepArrays arrays{
          .params = params.as<float>().data() + at.offset,
          .origin = origin.as<float>().data() + at.offset,
          .exp_avg = adam.exp_avg().as<float>().data() + at.offset,
          .accumulated = accumulator.as<float>().data() + at.offset,
          .from_zero = !accumulated,
          .denominator = denominator.as<float>().data() + at.offset,
          .grads = grads.subview(at.offset, at.size),
          .active = active_words(b)};
      if (momentum_is_signs) arrays.mean = mean_momentum(b);
      kernels::local_step(arrays, static_cast<float>(decay[group]), c[group]);
    });
    momentum_is_signs = false;
    accumulated = true;
  }

  // ---- the sync: u, times the denominator, travels as a momentum would
  [[nodiscard]] kernels::SignInput sync_input(
      std::size_t b, ConstView grads,
      std::span<const AdamCoefficients> c) const {
    kernels::SignInput input =
        momentum_input(b, grads, c[parts.block_group[b]]);
    const std::size_t at = parts.blocks.blocks()[b].values.offset;
    input.denominator = denominator.as<float>().data() + at;
    if (accumulated) input.accumulated = accumulator.as<float>().data() + at;
    return input;
  }

  template <class Input>
  void sync(View params, compress::CompressedAllReduce& all, Input&& input) {
    all.run(std::forward<Input>(input), [&](std::size_t b, Signs mean) {
      const Range& at = parts.blocks.blocks()[b].values;
      const std::size_t group = parts.block_group[b];
      if (lrs[group] == 0) return;
      kernels::sync_update(
          mean, active_words(b),
          {.params = params.as<float>().data() + at.offset,
           .origin = origin.as<float>().data() + at.offset,
           .denominator = denominator.as<float>().data() + at.offset,
           .size = at.size},
          static_cast<float>(decay[group]));
    });
    mean_lrs = lrs;
    if (std::count(lrs.begin(), lrs.end(), 0.0) == 0)
      keep_momentum_as_signs();
    else
      merge_momenta();
    begin_interval();
  }

  void begin_interval() {
    accumulated = false;
    lrs.assign(lrs.size(), 0);
    decay.assign(decay.size(), 1);
  }

  // b = -lrs m, so m = -b / lrs; before the first sync the mean is m itself.
  [[nodiscard]] Signs mean_momentum(std::size_t b) const override {
    Signs mean = exchange->mean(b);
    if (!mean_lrs.empty())
      mean.scale =
          -mean.scale / static_cast<float>(mean_lrs[parts.block_group[b]]);
    return mean;
  }

  // A group whose learning rate was 0 all the time has no b to take m from.
  void keep_momentum_of_resting_groups(ConstView grads,
                                       std::span<const AdamCoefficients> c) {
    if (std::count(lrs.begin(), lrs.end(), 0.0) == 0) return;
    keep_momentum_as_values();
    for (const GroupRange& r : parts.compressed)
      if (lrs[r.group] == 0)
        kernels::momentum(adam.exp_avg().as<float>().data() + r.range.offset,
                          grads.subview(r.range.offset, r.range.size),
                          c[r.group]);
  }

  // Such a group does not move either: what residuals gave for it goes back.
  void merge_momenta() {
    float* const m = adam.exp_avg().as<float>().data();
    std::vector<float> returned;
    for (std::size_t b = 0; b < parts.blocks.blocks().size(); ++b) {
      const Range& at = parts.blocks.blocks()[b].values;
      if (lrs[parts.block_group[b]] > 0) {
        kernels::sign_decode(mean_momentum(b), active_words(b), m + at.offset,
                             at.size);
        continue;
      }
      returned.resize(at.size);
      kernels::sign_decode(exchange->mean(b), active_words(b), returned.data(),
                           at.size);
      exchange->add_to_worker_error(b, returned.data(), 1);
    }
    momentum_is_signs = false;
  }

  void sync_alone(View params) {
    for_blocks([&](std::size_t b) {
      const Range& at = parts.blocks.blocks()[b].values;
      const auto sum = static_cast<float>(lrs[parts.block_group[b]]);
      const auto of = [&](Buffer& values) {
        return values.as<float>().subspan(at.offset, at.size);
      };
      const auto p = params.as<float>().subspan(at.offset, at.size);
      std::copy(p.begin(), p.end(), of(origin).begin());
      if (sum == 0) return;
      for (std::size_t i = 0; i < at.size; ++i)
        of(adam.exp_avg())[i] =
            -(of(accumulator)[i] * of(denominator)[i]) / sum;
    });
    begin_interval();
  }

  void synchronize(View params) override {
    if (ranks_are_equal()) return;
    if (!compresses()) {
      sync_alone(params);
      return;
    }
    Buffer b = copy_of(accumulator.view());
    const auto d = std::as_const(denominator).as<float>();
    for (std::size_t i = 0; i < b.size(); ++i) b.as<float>()[i] *= d[i];
    if (std::count(lrs.begin(), lrs.end(), 0.0) > 0) keep_momentum_as_values();
    sync(params, the_exchange(), [&](std::size_t block) {
      const std::size_t at = parts.blocks.blocks()[block].values.offset;
      return kernels::SignInput{.values = b.as<float>().data() + at};
    });
  }

  [[nodiscard]] bool ranks_are_equal() const override {
    return !is_frozen() || !accumulated || !lr_was_above_0();
  }

  void for_blocks(const std::function<void(std::size_t)>& body) {
    pool.for_each(parts.blocks.blocks().size(), body);
  }

  // ---- schedule and state
  [[nodiscard]] Phase phase() const override {
    if (is_frozen())
      return schedule.syncs(steps + 1) ? Phase::kCompressed : Phase::kLocal;
    return schedule.updates_variance(steps + 1) ? Phase::kExact
                                                : Phase::kCompressed;
  }

  [[nodiscard]] std::string describe_schedule() const override {
    return schedule.describe();
  }

  void save_own(StateDict& state) const override {
    schedule.save(state);
    state.put_integer("var_updates", var_updates);
    state.put_integer("frozen", is_frozen() ? 1 : 0);
    state.put("denominator", denominator.view());
    state.put("lrs", lrs);
    state.put("decay", decay);
    state.put_integer("accumulated", accumulated ? 1 : 0);
    if (!is_frozen()) return;
    state.put("origin", origin.view());
    if (accumulated) state.put("momentum_accumulator", accumulator.view());
  }

  [[nodiscard]] Commit read_own(const StateDict& state) override {
    const std::size_t n = adam.layout().size();
    ZeroOneSchedule new_schedule = schedule;
    new_schedule.load(state);
    const std::int64_t updates = state.integer("var_updates");
    const auto per_group = [&](const char* name) {
      const auto values =
          state.array(name, DType::kFloat64, lrs.size()).as<double>();
      return std::vector<double>(values.begin(), values.end());
    };
    const std::vector<double> new_lrs = per_group("lrs");
    const std::vector<double> new_decay = per_group("decay");
    const bool has_u = state.integer("accumulated") != 0;
    const bool frozen = state.integer("step") >= options.var_freeze_step;
    auto buffers = std::make_shared<std::array<Buffer, 3>>();
    auto& [d, theta, u] = *buffers;
    d = saved_floats(state, "denominator", n);
    if (frozen) theta = saved_floats(state, "origin", n);
    if (frozen)
      u = has_u ? saved_floats(state, "momentum_accumulator", n)
                : Buffer::of<float>(n);
    if (!frozen) (void)state.array("exp_avg_sq", DType::kFloat32, n);
    return [=, this] {
      schedule = new_schedule;
      var_updates = updates;
      lrs = new_lrs;
      decay = new_decay;
      accumulated = has_u;
      denominator = std::move((*buffers)[0]);
      origin = std::move((*buffers)[1]);
      accumulator = std::move((*buffers)[2]);
      mean_lrs.clear();
    };
  }
};

}  // namespace

LowBitSettings settings_of(const ZeroOneAdamOptions& o) {
  return low_bit_settings(
      "zero_one_adam",
      fmt::format(
          "var_freeze_step={} var_update_scaler={} "
          "local_step_scaler={} local_step_clipper={} exchanged={}",
          o.var_freeze_step, o.var_update_scaler, o.local_step_scaler,
          o.local_step_clipper,
          o.exchanged == Exchanged::kMomentum ? "momentum" : "gradient"),
      o);
}

void ZeroOneAdamOptions::validate(const ParameterLayout& layout) const {
  settings_of(*this).validate(layout);
  require(!amsgrad, "amsgrad",
          "false (0/1 Adam does not support it: its variance is frozen)",
          amsgrad);
  const bool reference = semantics == Semantics::kDeepSpeed;
  const std::int64_t least = reference ? 0 : 1;
  require(var_freeze_step >= least, "var_freeze_step",
          fmt::format(">= {}", least), var_freeze_step);
  require(var_update_scaler >= 1, "var_update_scaler", ">= 1",
          var_update_scaler);
  require(local_step_scaler >= 1, "local_step_scaler", ">= 1",
          local_step_scaler);
  require(local_step_clipper >= 1, "local_step_clipper", ">= 1",
          local_step_clipper);
  require(!reference || exchange.verify_every == 0, "verify_every",
          "0 with deepspeed semantics, whose ranks differ even after a sync",
          exchange.verify_every);
}

ZeroOneAdam::ZeroOneAdam(comm::Communicator& comm,
                         const ParameterLayout& layout,
                         const ZeroOneAdamOptions& options)
    : LowBitOptimizer([&]() -> std::unique_ptr<Impl> {
        options.validate(layout);
        if (options.semantics == Semantics::kDeepSpeed)
          return make_deepspeed_zero_one_adam(comm, layout, options);
        return std::make_unique<ZeroOneAdamImpl>(comm, layout, options);
      }()) {}

ZeroOneAdam::~ZeroOneAdam() = default;

}  // namespace thinwire::optim
