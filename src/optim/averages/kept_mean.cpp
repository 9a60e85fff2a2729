// SPDX-License-Identifier: Apache-2.0
#include "optim/averages/kept_mean.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "exchange/codec/codec.h"
#include "exchange/units/low_bit_units.h"
#include "exchange/units/low_rank_steps.h"
#include "exchange/units/unit_residuals.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

namespace {

constexpr const char* kFactors = "low_rank.factors";
constexpr const char* kGenerators = "low_rank.generators";
constexpr const char* kPasses = "low_rank_steps";

[[noreturn]] void corrupt(const std::string& text) {
  throw Error(ErrorCode::kCorruptCheckpoint, text);
}

std::int64_t saved_option(const StateDict& state, const char* name) {
  return state.has_scalar(name) ? state.integer(name) : 0;
}

// Requires that a state has either all parts of the factors or none.
void require_whole_factors(const StateDict& state, std::int64_t low_rank) {
  if (!state.has_array(kFactors) && !state.has_array(kGenerators)) return;
  if (low_rank == 0)
    corrupt(fmt::format("the state's {} must be in [1, 64] with {}, got {}",
                        kLowRank, kFactors,
                        state.has_scalar(kLowRank) ? "0" : "none"));
  static_cast<void>(
      state.array(kFactors, DType::kFloat32, state.array(kFactors).size()));
  static_cast<void>(
      state.array(kGenerators, DType::kInt64, state.array(kGenerators).size()));
  static_cast<void>(saved_count(state, kPasses));
}

void require_size(const StateDict& state, const char* name, DType dtype,
                  std::size_t size) {
  if (size > 0 || state.has_array(name))
    static_cast<void>(state.array(name, dtype, size));
}

std::vector<std::size_t> sizes_of(const ParameterLayout& layout) {
  std::vector<std::size_t> sizes;
  for (const Parameter& p : layout.parameters()) sizes.push_back(p.size);
  return sizes;
}

std::int64_t servers_of(const exchange::UnitResiduals& residuals,
                        const exchange::Route& route) {
  std::vector<std::int32_t> servers;
  for (std::size_t unit = 0; unit < residuals.units().size(); ++unit)
    for (const auto& cut : residuals.cuts_of(unit))
      servers.push_back(static_cast<std::int32_t>(cut.place));
  const std::vector<int>& ranks = route.comm.hosts().ranks;
  servers.insert(servers.end(), ranks.begin(), ranks.end());
  return static_cast<std::int64_t>(checksum(servers));
}

UnitResidualParts parts_of(const exchange::UnitResiduals& residuals) {
  return {kAverageWorkerError, kAverageServerError, residuals.encoded(),
          residuals.served()};
}

class MeanInBits final : public KeptMean {
 public:
  MeanInBits(const exchange::Route& route, ThreadPool& pool,
             const ParameterLayout& layout, int bits)
      : route_(route),
        bits_(bits),
        residuals_(route, sizes_of(layout), DType::kFloat32),
        units_(route, pool, residuals_, bits, exchange::Accepts::kSteps) {}

  exchange::UnitMean& mean() override { return units_; }
  void describe_step(StepReport& report) const override { report.bits = bits_; }
  UnitResidualParts parts() const override { return parts_of(residuals_); }
  std::int64_t servers() const override {
    return servers_of(residuals_, route_);
  }
  void add_to(State& state) override {
    add_unit_errors(state, parts(), residuals_.worker(),
                    residuals_.server_error().view());
  }
  void require_own(const StateDict& /*state*/) const override {}
  void load(const std::optional<UnitErrors>& errors, const StateDict& /*state*/,
            Notes& /*notes*/) override {
    if (errors) residuals_.load(errors->worker.view(), errors->server.view());
  }

 private:
  const exchange::Route route_;
  const int bits_;
  exchange::UnitResiduals residuals_;
  exchange::LowBitUnits units_;
};

std::vector<exchange::MatrixShape> shapes_of(const ParameterLayout& layout) {
  std::vector<exchange::MatrixShape> shapes;
  for (const Parameter& p : layout.parameters()) {
    const bool is_matrix = p.shape.size() > 1 && p.size > 0;
    const std::size_t rows = is_matrix ? p.shape.front() : p.size;
    shapes.push_back({rows, is_matrix ? p.size / rows : 1});
  }
  return shapes;
}

class MeanOfFactors final : public KeptMean {
 public:
  MeanOfFactors(const exchange::Route& route, ThreadPool& pool,
                const ParameterLayout& layout, const AverageOptions& options)
      : route_(route),
        low_rank_(options.low_rank),
        steps_(route, pool, shapes_of(layout),
               {.low_rank = options.low_rank,
                .first_steps = first_steps_of(options),
                .first_bits = options.first_bits},
               exchange::Accepts::kSteps) {}

  exchange::UnitMean& mean() override { return steps_; }
  void describe_step(StepReport& report) const override {
    report.bits = steps_.first_bits();
    report.low_rank = report.bits == 0 ? low_rank_ : 0;
  }
  UnitResidualParts parts() const override {
    return parts_of(steps_.residuals());
  }
  std::int64_t servers() const override {
    return servers_of(steps_.residuals(), route_);
  }

  void add_to(State& state) override {
    add_unit_errors(state, parts(), steps_.worker_error(),
                    steps_.residuals().server_error().view());
    state.common.put_integer(kPasses, steps_.passes());
    state.add_free(kFactors, steps_.factors());
    const auto generators = steps_.generators();
    Buffer kept = Buffer::of<std::int64_t>(generators.size());
    std::ranges::transform(
        generators, kept.as<std::int64_t>().begin(),
        [](std::uint64_t value) { return std::bit_cast<std::int64_t>(value); });
    state.add_free(kGenerators, std::as_const(kept).view());
    state.arrays.back().read = StateArray::from(std::move(kept));
  }

  // Factors of another low rank may have any size, because they are started
  // anew.
  void require_own(const StateDict& state) const override {
    if (saved_average(state).low_rank != low_rank_) return;
    static_cast<void>(saved_count(state, kPasses));
    require_size(state, kFactors, DType::kFloat32, steps_.factors().size());
    require_size(state, kGenerators, DType::kInt64, steps_.generators().size());
  }

  // A run without first steps counts the first steps of the state as its own.
  void load(const std::optional<UnitErrors>& errors, const StateDict& state,
            Notes& notes) override {
    const std::size_t size = steps_.residuals().size();
    const Buffer none = Buffer::of<float>(errors ? 0 : size);
    exchange::LowRankMean::Saved saved{
        .worker = errors ? errors->worker.view() : none.view(),
        .server = errors ? errors->server.view() : none.view(),
        .factors = steps_.factors(),
        .generators = steps_.generators(),
        .passes =
            saved_count(state, state.has_scalar(kPasses) ? kPasses : "step")};
    std::vector<std::uint64_t> generators;
    if (has_factors(state)) {
      saved.factors = state.array(kFactors);
      require_usable(kFactors, saved.factors);
      for (const std::int64_t value :
           state.array(kGenerators).as<std::int64_t>())
        generators.push_back(std::bit_cast<std::uint64_t>(value));
      saved.generators = generators;
    } else if (state.has_array(kFactors)) {
      notes.emplace_back(
          "low_rank: factors begin anew, because the state's are of other "
          "columns or parameters");
    }
    steps_.load(saved);
  }

 private:
  [[nodiscard]] bool has_factors(const StateDict& state) const {
    return state.has_array(kFactors) &&
           saved_average(state).low_rank == low_rank_ &&
           state.array(kFactors).size() == steps_.factors().size() &&
           state.array(kGenerators).size() == steps_.generators().size();
  }

  const exchange::Route route_;
  const int low_rank_;
  exchange::LowRankSteps steps_;
};

}  // namespace

AverageOptions saved_average(const StateDict& state) {
  const std::int64_t bits = saved_option(state, kAverageBits);
  const std::int64_t low_rank = saved_option(state, kLowRank);
  const auto kept = static_cast<int>(bits);
  if (bits != 0 && (kept != bits || !exchange::has_codec(kept)))
    corrupt(fmt::format("the state's {} must be {}, got {}", kAverageBits,
                        exchange::known_bits(/*or_exact=*/true), bits));
  if (low_rank < 0 || low_rank > 64)
    corrupt(fmt::format("the state's {} must be in [0, 64], got {}", kLowRank,
                        low_rank));
  require_whole_factors(state, low_rank);
  return {.bits = kept, .low_rank = static_cast<int>(low_rank)};
}

std::unique_ptr<KeptMean> make_kept_mean(const exchange::Route& route,
                                         ThreadPool& pool,
                                         const ParameterLayout& layout,
                                         const AverageOptions& options) {
  if (options.low_rank != 0)
    return std::make_unique<MeanOfFactors>(route, pool, layout, options);
  return std::make_unique<MeanInBits>(route, pool, layout, options.bits);
}

}  // namespace thinwire::optim
