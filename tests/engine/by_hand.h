// SPDX-License-Identifier: Apache-2.0
// A model without a framework, trained by an Engine and, the same, by an
// optimizer that is driven by hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/engine/engine.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/precision/mixed_precision.h"

// `test::` means these and what all modules share.
namespace thinwire::test {}
namespace thinwire::engine::test {
using namespace thinwire::test;  // NOLINT(google-build-using-namespace)
using config::Config;

constexpr ErrorCode kPrecondition = ErrorCode::kFailedPrecondition;
constexpr ErrorCode kArgument = ErrorCode::kInvalidArgument;
inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16,
                                    DType::kBFloat16};
/// Nothing outlives the process.
inline const checkpoint::SaveOptions kQuick{.durable = false};

/// Three buckets of 16384, parameters within and across them, empty
/// ones, two groups.
inline ParameterLayout model_layout() {
  return ParameterLayout::of({{"empty", {0}, 0},
                              {"scalar", {}, 1},
                              {"wide", {130, 129}, 0},
                              {"odd", {33, 17}, 1},
                              {"none", {4, 0}, 0},
                              {"block", {1025}, 0},
                              {"long", {20000}, 1},
                              {"last", {3}, 0}});
}

/// Group by group, which DeepSpeed's wrapper for flat groups asks for.
inline std::vector<ParameterSpec> ordered_specs() {
  return {{"scalar", {}, 0},
          {"wide", {37, 29}, 0},
          {"none", {4, 0}, 0},
          {"odd", {33, 17}, 1},
          {"last", {3}, 1}};
}

/// Numbers in [-1, 1), another set for each rank.
std::vector<float> initial_params(std::size_t n, int rank);

/// One backward of one rank.
struct Batch {
  std::int64_t step = 1;
  std::int64_t micro = 0;
  bool overflows = false;  ///< One gradient is infinite.
};

/// A parameter that has no gradient in any backward of this rank.
inline bool is_unused(std::size_t parameter, int rank) {
  return (parameter + static_cast<std::size_t>(rank)) % 4 == 1;
}

/// The gradient of the loss times `factor`, in `dtype`.
Buffer gradient(const ParameterLayout& layout, int rank, const Batch& batch,
                double factor, DType dtype);

std::vector<float> floats(ConstView values);
/// Every element is 0.
bool is_zero(ConstView values);
/// sum[i] += values[i], in float.
void add_floats(std::vector<float>& sum, ConstView values);

/// How many notes of a load contain `part`.
inline std::ptrdiff_t count_notes(const checkpoint::LoadReport& report,
                                  std::string_view part) {
  return std::ranges::count_if(report.notes, [part](const std::string& note) {
    return note.find(part) != std::string::npos;
  });
}

struct OptimizerCase {
  std::string name;
  config::OptimizerConfig options;
};

/// All five, such that eight steps go through all of their phases.
std::vector<OptimizerCase> optimizer_cases();
/// One of them by its name.
config::OptimizerConfig optimizer_case(std::string_view name);

/// It has the buckets of model_layout(), and a loss scale that soon changes.
inline Config config_of(std::string_view optimizer,
                        DType dtype = DType::kFloat32,
                        std::optional<std::int64_t> backwards = {},
                        bool managed = true) {
  Config config{.optimizer = optimizer_case(optimizer),
                .gradient_accumulation_steps = backwards,
                .managed_gradient_accumulation = managed};
  config.precision.dtype = dtype;
  config.precision.loss_scale = {
      .initial_scale = 1024, .window = 2, .hysteresis = 1};
  config.comm.bucket_elements = 16384;
  return config;
}

/// The same with ZeRO, and buckets that are smaller than some parameters.
inline Config zero_config(int stage, DType dtype = DType::kFloat32,
                          std::int64_t backwards = 1, bool managed = true) {
  Config config = config_of("adam", dtype, backwards, managed);
  config.comm.bucket_elements = 0;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 5000;
  return config;
}

/// The same optimizer with an outer loop of three local steps.
inline Config outer_config(std::string_view optimizer,
                           DType dtype = DType::kFloat32) {
  Config config = config_of(optimizer, dtype);
  config.gradient_clipping = 1;
  config.precision.loss_scale.window = 4;
  config.comm.bucket_elements = 0;
  config.outer = {.sync_every = 3, .learning_rate = 0.9, .momentum = 0.3};
  if (optimizer != "onebit_adam") config.outer.warmup_steps = 2;
  return config;
}

struct NamedConfig {
  std::string name;
  Config config;
};

/// ZeRO in few bits, and lean 1-bit Adam.
std::vector<NamedConfig> few_bits_cases();

/// The optimizer itself, made without an Engine.
struct MakeByHand {
  comm::Communicator& comm;
  const ParameterLayout& layout;
  optim::ExchangeOptions exchange;

  using Made = std::unique_ptr<optim::Optimizer>;
  Made operator()(const optim::AdamOptions& o) const {
    return std::make_unique<optim::DataParallel>(
        comm, std::make_unique<optim::Adam>(layout, o), exchange);
  }
  Made operator()(const optim::LambOptions& o) const {
    return std::make_unique<optim::DataParallel>(
        comm, std::make_unique<optim::Lamb>(layout, o), exchange);
  }
  template <class Optimizer, class Options>
  Made low_bit(Options o) const {
    o.compression.exchange = exchange;
    return std::make_unique<Optimizer>(comm, layout, o);
  }
  Made operator()(const optim::OnebitAdamOptions& o) const {
    return low_bit<optim::OnebitAdam>(o);
  }
  Made operator()(const optim::OnebitLambOptions& o) const {
    return low_bit<optim::OnebitLamb>(o);
  }
  Made operator()(const optim::ZeroOneAdamOptions& o) const {
    return low_bit<optim::ZeroOneAdam>(o);
  }
  // engine_test.cpp tests the lean optimizer.
  Made operator()(const lean::LeanOnebitAdamOptions&) const { return nullptr; }
};

/// Parameters, gradients and sums as one would write them around step().
class ByHand {
 public:
  ByHand(comm::Communicator& c, const Config& config,
         const optim::ExchangeOptions& exchange)
      : dtype(config.precision.dtype),
        params(layout.size(), dtype),
        grads(layout.size(), dtype),
        comm(c) {
    const auto start = initial_params(layout.size(), 0);
    kernels::convert(start, params.view());
    optimizer =
        std::visit(MakeByHand{comm, layout, exchange}, config.optimizer);
    if (dtype == DType::kFloat32) return;
    precision::MixedPrecisionOptions options{
        .dtype = dtype, .loss_scale = config.precision.loss_scale};
    auto wrapped = std::make_unique<precision::MixedPrecision>(
        comm, layout, std::move(optimizer), ConstView(start), options);
    mixed = wrapped.get();
    optimizer = std::move(wrapped);
  }

  [[nodiscard]] double loss_scale() const {
    return mixed == nullptr ? 1 : mixed->loss_scale();
  }

  /// `backwards` of them, their losses divided by `divisor`, then step().
  optim::StepReport step(std::int64_t number, std::int64_t backwards,
                         std::int64_t divisor, bool overflows) {
    const double factor = loss_scale() / static_cast<double>(divisor);
    const auto batch = [&](std::int64_t micro) {
      const Batch own{number, micro, overflows && micro == 0};
      return gradient(layout, comm.rank(), own, factor, dtype);
    };
    grads = batch(0);
    if (backwards == 1) return take(grads.view());
    std::vector<float> sum = floats(grads.view());
    for (std::int64_t micro = 1; micro < backwards; ++micro)
      add_floats(sum, batch(micro).view());
    if (!travels()) return take(sum);
    kernels::convert(sum, grads.view());
    return take(grads.view());
  }

  /// The next step sends gradients, in the dtype of the wire.
  [[nodiscard]] bool travels() const {
    return comm.size() > 1 &&
           optimizer->progress().phase == optim::Phase::kExact;
  }

  const ParameterLayout layout = model_layout();
  const DType dtype;
  Buffer params;
  Buffer grads;
  std::unique_ptr<optim::Optimizer> optimizer;
  precision::MixedPrecision* mixed = nullptr;

 private:
  optim::StepReport take(View sum) {
    return optimizer->step(params.view(), sum);
  }
  comm::Communicator& comm;
};

/// The model of a Sharded.
struct Model {
  ParameterLayout layout = model_layout();
  std::size_t num_wide = 0;  ///< The last ones are fp32 in any precision.
  bool from_floats = true;   ///< Masters are parameters before the rounding.
  /// Values that rank 0 begins with, and others that the other ranks have.
  std::function<std::vector<float>(const ParameterLayout&, int rank)> start =
      [](const ParameterLayout& of, int rank) {
        return initial_params(of.size(), rank);
      };
};

/// In which order gradients become ready.
enum class Order {
  kForward,
  kReverse,
  kShuffled,
  kPerRank,  ///< Another one on every rank.
  kPartly,   ///< Backwards, without unused parameters and every third other.
  kSilent,   ///< None is announced.
};

/// An Engine with its memory. Gradients have an array where the Engine keeps
/// them.
class Sharded {
 public:
  Sharded(comm::Communicator& c, const Config& config, Model model = {})
      : layout(std::move(model.layout)),
        comm(c),
        keeps(keeps_gradients(config, c.size())),
        first_wide(layout.parameters().size() - model.num_wide),
        narrow(model.num_wide == 0 ? layout.size()
                                   : layout.parameters()[first_wide].offset),
        params(narrow, config.precision.dtype),
        grads(keeps ? narrow : 0, config.precision.dtype),
        wide_params(layout.size() - narrow, DType::kFloat32),
        wide_grads(keeps ? layout.size() - narrow : 0, DType::kFloat32),
        engine([&] {
          const auto start = model.start(layout, c.rank());
          kernels::convert(start, all_params());
          for (Buffer* const own : {&grads, &wide_grads})
            if (!own->empty()) std::memset(own->data(), 0xff, own->bytes());
          return Engine(comm, layout, config, all_params(), all_grads(),
                        model.from_floats ? ConstView(start) : ConstView());
        }()) {}

  [[nodiscard]] View all_params() { return joined(params, wide_params); }
  [[nodiscard]] View all_grads() { return joined(grads, wide_grads); }

  [[nodiscard]] Buffer gradients(const Batch& batch) const {
    return gradient(layout, comm.rank(), batch, engine.loss_factor(),
                    wide_params.empty() ? params.dtype() : DType::kFloat32);
  }
  /// Parameter k's gradient, which is among all of `own`, is final.
  void hand_over(const Buffer& own, std::size_t k) {
    const Parameter& p = layout.parameters()[k];
    Buffer values(p.size, k < first_wide ? params.dtype() : DType::kFloat32);
    kernels::convert(own.view().subview(p.offset, p.size), values.view());
    const ConstView its = std::as_const(values).view();
    if (!keeps) return engine.gradient_ready(k, its);
    if (p.size > 0)
      kernels::accumulate(all_grads().subview(p.offset, p.size), its);
    engine.gradient_ready(k);
  }
  /// Without `left_out`; the odd ranks in another order.
  void backward(const Batch& batch,
                const std::set<std::size_t>& left_out = {}) {
    engine.begin_backward();
    const Buffer own = gradients(batch);
    const std::size_t count = layout.parameters().size();
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t k = comm.rank() % 2 == 0 ? count - 1 - i : i;
      if (left_out.count(k) == 0) hand_over(own, k);
    }
    engine.end_backward();
  }
  /// In that order, each backward in another. All gradients have an array.
  void backward(const Batch& batch, Order order) {
    engine.begin_backward();
    const Buffer own = gradients(batch);
    std::vector<std::size_t> all(layout.parameters().size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    if (order == Order::kReverse || order == Order::kPartly)
      std::reverse(all.begin(), all.end());
    std::mt19937 random(static_cast<unsigned>(batch.step * 8 + batch.micro));
    if (order == Order::kPerRank)
      random.seed(static_cast<unsigned>(batch.step * 8 + comm.rank()));
    if (order == Order::kShuffled || order == Order::kPerRank)
      std::shuffle(all.begin(), all.end(), random);
    for (const std::size_t k : all) {
      add(own, k, batch.overflows);
      const bool skip = order == Order::kSilent ||
                        (order == Order::kPartly &&
                         (is_unused(k, comm.rank()) || k % 3 == 0));
      if (!skip) engine.gradient_ready(k);
    }
    engine.end_backward();
  }
  /// One with these gradients.
  void backward_of(const std::vector<float>& gradients) {
    Buffer own(gradients.size(), DType::kFloat32);
    kernels::convert(gradients, own.view());
    engine.begin_backward();
    for (std::size_t k = layout.parameters().size(); k-- > 0;)
      hand_over(own, k);
    engine.end_backward();
  }
  EngineReport step(const Batch& batch,
                    const std::set<std::size_t>& left_out = {}) {
    backward(batch, left_out);
    return engine.step();
  }
  EngineReport step(const Batch& batch, Order order) {
    backward(batch, order);
    return engine.step();
  }
  /// Returns the parameters that have no gradient on this rank.
  [[nodiscard]] std::set<std::size_t> unused() const {
    std::set<std::size_t> all;
    for (std::size_t k = 0; k < layout.parameters().size(); ++k)
      if (is_unused(k, comm.rank())) all.insert(k);
    return all;
  }

  using Values = std::map<std::string, std::vector<float>>;
  [[nodiscard]] Values masters() {
    Values all;
    for (const Parameter& p : layout.parameters())
      all[p.name] = engine.whole_values().parameter(p.name);
    return all;
  }

  const ParameterLayout layout;
  comm::Communicator& comm;
  const bool keeps;
  const std::size_t first_wide;  ///< Number of a parameter.
  const std::size_t narrow;      ///< Elements before it.
  Buffer params;
  Buffer grads;
  Buffer wide_params;
  Buffer wide_grads;
  Engine engine;

 private:
  // Does what autograd does, which leaves unused parameters alone.
  void add(const Buffer& own, std::size_t k, bool overflows) {
    const Parameter& p = layout.parameters()[k];
    if (p.size == 0 || (is_unused(k, comm.rank()) && !overflows)) return;
    kernels::accumulate(grads.view().subview(p.offset, p.size),
                        own.view().subview(p.offset, p.size));
  }
  static View joined(Buffer& first, Buffer& second) {
    return second.empty() ? first.view()
                          : View::joined(first.view(), second.view());
  }
};

/// Ranks that load `from`, unless it is empty, train and save; where it is.
std::string save_run(int world, const Config& config, const std::string& root,
                     std::int64_t steps, const Model& model = {},
                     const std::string& from = {});

}  // namespace thinwire::engine::test
