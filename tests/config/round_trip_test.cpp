// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "config/keys.h"
#include "thinwire/config/config.h"

namespace thinwire::config::round_trip_test {
namespace {

// ---- valid settings of every kind

// Whose objects any_config() has.
const std::vector<std::string> kTaken{"a program", "another"};

// Reads the text of a configuration that any_config() has drawn.
Config read_again(const std::string& text,
                  std::vector<KeyNote>* notes = nullptr) {
  return Config::from_json(text, notes, {}, kTaken);
}

bool any_bool() { return *rc::gen::arbitrary<bool>(); }

// In [least, most], with all of a double's digits.
double any_real(double least, double most) {
  const double part = static_cast<double>(
      *rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 53));
  return least + (most - least) * std::ldexp(part, -53);
}

std::int64_t any_count(std::int64_t least = 1,
                       std::int64_t most = 1'000'000'000'000) {
  return *rc::gen::inRange(least, most);
}

template <class T, class Make>
std::optional<T> maybe(Make make) {
  if (any_bool()) return std::nullopt;
  return make();
}

template <class Options>
Options any_options() {
  Options o;
  o.learning_rate = any_real(0, 10);
  o.beta1 = any_real(0, 0.99);
  o.beta2 = any_real(0, 0.99);
  o.epsilon = any_real(1e-12, 1e-3);
  o.weight_decay = any_real(0, 1);
  o.bias_correction = any_bool();
  o.epsilon_inside_sqrt = any_bool();
  if constexpr (requires { o.decoupled_decay; }) o.decoupled_decay = any_bool();
  if constexpr (requires { o.max_coeff; }) {
    o.max_coeff = any_real(1, 20);
    o.min_coeff = any_real(0, 1);
  }
  if constexpr (requires { o.coeff_beta; }) {
    o.coeff_beta = any_real(0, 0.99);
    o.factor_max = any_real(1, 9);
    o.factor_min = any_real(0.1, 1);
    o.factor_threshold = any_real(0, 1);
  }
  if constexpr (requires { o.freeze; })
    o.freeze = {
        .step = maybe<std::int64_t>(
            [] { return any_bool() ? optim::kAutoFreeze : any_count(); }),
        .lr_warmup_steps = maybe<std::int64_t>([] { return any_count(0); }),
        .total_steps = maybe<std::int64_t>([] { return any_count(); }),
        .min_step = any_count(1, 100),
        .max_step = maybe<std::int64_t>([] { return any_count(100); }),
        .ratio = any_real(0.1, 1)};
  if constexpr (requires { o.denominator_bits; })
    o.denominator_bits = any_bool() ? 8 : 4;
  if constexpr (requires { o.var_freeze_step; }) {
    o.total_steps = maybe<std::int64_t>([] { return any_count(); });
    o.var_freeze_step = maybe<std::int64_t>([] { return any_count(); });
    o.var_update_scaler = maybe<std::int64_t>([] { return any_count(); });
    o.local_step_scaler = maybe<std::int64_t>([] { return any_count(); });
    o.local_step_clipper = maybe<std::int64_t>([] { return any_count(); });
  }
  if constexpr (requires { o.compression; })
    o.compression = {.denom_floor = any_real(0, 2),
                     .residual_dtype = maybe<DType>([] {
                       return any_bool() ? DType::kFloat32 : DType::kBFloat16;
                     })};
  return o;
}

OptimizerConfig any_optimizer() {
  switch (any_count(0, 6)) {
    case 0:
      return any_options<optim::AdamOptions>();
    case 1:
      return any_options<optim::LambOptions>();
    case 2:
      return any_options<optim::OnebitAdamOptions>();
    case 3:
      return any_options<optim::OnebitLambOptions>();
    case 4:
      return any_options<lean::LeanOnebitAdamOptions>();
    default:
      return any_options<optim::ZeroOneAdamOptions>();
  }
}

Warmup any_warmup() { return any_bool() ? Warmup::kLinear : Warmup::kLog; }

LearningRateSchedule any_schedule() {
  const std::int64_t warmup = any_count(2, 1000);
  const std::int64_t total = warmup + any_count();
  switch (any_count(0, 6)) {
    case 0:
      return {WarmupAndDecay{
          .decay = *rc::gen::element(Decay::kNone, Decay::kLinear,
                                     Decay::kCosine, Decay::kInverseSqrt),
          .warmup = any_warmup(),
          .warmup_steps = warmup,
          .total_steps = total,
          .final_fraction = any_real(0, 1)}};
    case 1:
      return {WarmupLr{
          .warmup_min_lr = any_real(0, 1),
          .warmup_max_lr = maybe<double>([] { return any_real(0, 1); }),
          .warmup_num_steps = warmup,
          .warmup_type = any_warmup()}};
    case 2:
      return {WarmupDecayLr{.total_num_steps = total,
                            .warmup_min_lr = any_real(0, 1),
                            .warmup_max_lr = any_real(0, 1),
                            .warmup_num_steps = warmup,
                            .warmup_type = any_warmup()}};
    case 3:
      return {WarmupCosineLr{.total_num_steps = total,
                             .warmup_min_ratio = any_real(0, 1),
                             .warmup_num_steps = warmup,
                             .cos_min_ratio = any_real(0, 1),
                             .warmup_type = any_warmup()}};
    case 4:
      return {OneCycle{.cycle_min_lr = any_real(0, 1),
                       .cycle_max_lr = any_real(0, 1),
                       .decay_lr_rate = any_real(0, 1),
                       .cycle_first_step_size = any_count(),
                       .cycle_second_step_size =
                           maybe<std::int64_t>([] { return any_count(); }),
                       .cycle_first_stair_count = any_count(0),
                       .cycle_second_stair_count =
                           maybe<std::int64_t>([] { return any_count(0); }),
                       .decay_step_size = any_count(0)}};
    default:
      return {LrRangeTest{.lr_range_test_min_lr = any_real(0, 1),
                          .lr_range_test_step_size = any_count(),
                          .lr_range_test_step_rate = any_real(0, 9),
                          .lr_range_test_staircase = any_bool()}};
  }
}

PrecisionConfig any_precision() {
  PrecisionConfig p;
  p.dtype =
      *rc::gen::element(DType::kFloat32, DType::kFloat16, DType::kBFloat16);
  p.check_grad_overflow = p.dtype == DType::kFloat16 || any_bool();
  if (any_bool()) p.master_dtype = p.dtype;
  if (p.master_dtype == DType::kBFloat16 && any_bool())
    p.state_dtype = DType::kBFloat16;
  p.loss_scale.dynamic = any_bool();
  p.loss_scale.initial_scale =
      any_bool() ? std::ldexp(1.0, static_cast<int>(any_count(0, 30)))
                 : any_real(1, 1e6);
  p.loss_scale.window = any_count();
  p.loss_scale.hysteresis = any_count();
  p.loss_scale.consecutive_hysteresis = any_bool();
  p.loss_scale.min_scale = any_real(1e-3, 1);
  p.loss_scale.max_scale = any_bool() ? std::numeric_limits<double>::infinity()
                                      : any_real(1e10, 1e20);
  p.loss_scale.at_minimum =
      any_bool() ? precision::AtMinimum::kStop : precision::AtMinimum::kHold;
  return p;
}

zero::WireOptions any_wire() {
  return {.bits_up = *rc::gen::element(0, 4, 8),
          .bits_down = *rc::gen::element(0, 4, 8),
          .residual_dtype = *rc::gen::element<std::optional<DType>>(
              std::nullopt, DType::kFloat32, DType::kBFloat16),
          .after_skip =
              *rc::gen::element(zero::AfterSkip::kAuto, zero::AfterSkip::kKeep,
                                zero::AfterSkip::kClear)};
}

ZeroConfig any_zero() {
  return {.stage = static_cast<int>(any_count(0, 3)),
          .reduce_scatter = any_bool(),
          .reduce_bucket_size = any_count(0),
          .allgather_bucket_size = any_count(0),
          .ignore_unused_parameters = any_bool(),
          .round_robin_gradients = any_bool(),
          .offload_optimizer =
              any_bool() ? OffloadDevice::kNone : OffloadDevice::kCpu};
}

CheckpointConfig any_checkpoint() {
  return {.root = any_bool() ? "" : "Out/a b",
          .every_steps = any_count(0),
          .every = std::chrono::milliseconds(any_count(0, 3'600'000'001)),
          .keep_last = any_count(0),
          .keep_every = any_count(0),
          .asynchronous = any_bool()};
}

TelemetryConfig any_telemetry() {
  return {.path = any_bool() ? "" : "Out/steps.jsonl",
          .every = any_count(),
          .every_rank = any_bool(),
          .residual_every = any_count(0)};
}

optim::AverageOptions any_average() {
  optim::AverageOptions average{
      .total_steps = maybe<std::int64_t>([] { return any_count(); })};
  if (any_bool())
    average.bits = *rc::gen::element(0, 4, 8);
  else
    average.low_rank = static_cast<int>(any_count(0, 65));
  if (average.low_rank == 0) return average;
  average.first_bits = *rc::gen::element(4, 8);
  if (any_bool()) average.first_steps = any_count(0);
  return average;
}

Config any_config() {
  Config c;
  if (any_bool()) c.checkpoint = any_checkpoint();
  if (any_bool()) c.telemetry = any_telemetry();
  c.optimizer = any_optimizer();
  c.precision = any_precision();
  c.gradient_clipping = any_real(0, 5);
  c.lagged_clipping = any_bool();
  c.fallback =
      *rc::gen::element(Fallback::kOff, Fallback::kWarn, Fallback::kHold);
  c.buffers = *rc::gen::element(Buffers::kBroadcast, Buffers::kAverage,
                                Buffers::kAsTheyAre);
  const auto size = [] { return any_count(); };
  c.train_batch_size = maybe<std::int64_t>(size);
  c.train_micro_batch_size_per_gpu = maybe<std::int64_t>(size);
  c.gradient_accumulation_steps = maybe<std::int64_t>(size);
  c.managed_gradient_accumulation = any_bool();
  if (any_bool()) c.accumulation_dtype = c.precision.dtype;
  c.communication_dtype = maybe<DType>([] {
    return *rc::gen::element(DType::kFloat32, DType::kFloat16,
                             DType::kBFloat16);
  });
  c.schedule = any_schedule();
  c.zero = any_zero();
  const bool is_exact =
      std::holds_alternative<optim::AdamOptions>(c.optimizer) ||
      std::holds_alternative<optim::LambOptions>(c.optimizer);
  if (is_exact) c.zero.wire = any_wire();
  if (is_exact && any_bool()) c.average = any_average();
  const CommBackend backend =
      *rc::gen::element(CommBackend::kUnset, CommBackend::kNccl,
                        CommBackend::kHccl, CommBackend::kMpi);
  c.comm = {.backend = is_exact ? CommBackend::kUnset : backend,
            .hierarchy = *rc::gen::element(Hierarchy::kAuto, Hierarchy::kFlat,
                                           Hierarchy::kByHost),
            .ranks_per_host = static_cast<int>(any_count(0, 1000)),
            .bucket_elements = static_cast<std::size_t>(any_count()),
            .num_threads = static_cast<int>(any_count(0, 1025)),
            .verify_every = any_count(0),
            .overlap = any_bool()};
  c.comm.compressed_under_next_step =
      std::holds_alternative<optim::OnebitAdamOptions>(c.optimizer) &&
      c.zero.stage == 0 && any_bool();
  c.steps_per_print = any_count(0);
  c.prescale_gradients = any_bool();
  if (any_bool()) c.gradient_predivide_factor = any_real(1, 64);
  c.wall_clock_breakdown = any_bool();
  c.memory_breakdown = any_bool();
  if (any_bool())
    c.other_objects[kTaken[0]] = "{\n  \"a\": 100.0,\n  \"b\": []\n}";
  if (any_bool())
    c.other_objects[kTaken[1]] = "{\n  \"data\": \"é \\\\ \\\"\"\n}";
  return c;
}

// ---- properties

RC_GTEST_PROP(AnyConfig, IsReadAsItWasWritten, ()) {
  const Config config = any_config();
  const std::string text = config.to_json();
  const Config again = read_again(text);
  RC_ASSERT(again == config);
  RC_ASSERT(again.to_json() == text);
}

bool is_supported(const std::string& path) {
  const auto rules = key_rules();
  return std::any_of(rules.begin(), rules.end(), [&](const KeyRule& rule) {
    return rule.path == path && rule.status == KeyStatus::kSupported;
  });
}

RC_GTEST_PROP(AnyConfig, WritesSupportedKeysAndItsObjects, ()) {
  const Config config = any_config();
  std::vector<KeyNote> notes;
  static_cast<void>(read_again(config.to_json(), &notes));
  for (const KeyNote& note : notes)
    RC_ASSERT(is_supported(note.path) ||
              config.other_objects.contains(note.path));
}

RC_GTEST_PROP(AnySchedule, GivesRatesThatMakeSense, ()) {
  const LearningRateSchedule schedule = any_schedule();
  const std::int64_t applied = any_count(0);
  const double rate = schedule.rate(any_real(0, 1), applied);
  RC_ASSERT(std::isfinite(rate));
  RC_ASSERT(rate >= 0);
}

TEST(Config, WritesZerosWithoutASign) {
  const Config config = Config::from_json(R"({"gradient_clipping": -0.0})");
  EXPECT_EQ(Config::from_json(config.to_json()).to_json(), config.to_json());
}

TEST(Config, WritesItsDefaults) {
  EXPECT_EQ(Config::from_json(Config{}.to_json()), Config{});
  const Config low_bit{.optimizer = optim::OnebitAdamOptions{},
                       .semantics = Semantics::kDeepSpeed};
  EXPECT_EQ(Config::from_json(low_bit.to_json()), low_bit);
}

}  // namespace
}  // namespace thinwire::config::round_trip_test
