// SPDX-License-Identifier: Apache-2.0
#include "optim/averages/kept_mean.h"

#include <vector>

#include "exchange/units/low_bit_units.h"
#include "exchange/units/unit_residuals.h"
#include "thinwire/core/checksum.h"

namespace thinwire::optim {

namespace {

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

}  // namespace

std::unique_ptr<KeptMean> make_kept_mean(const exchange::Route& route,
                                         ThreadPool& pool,
                                         const ParameterLayout& layout,
                                         const AverageOptions& options) {
  return std::make_unique<MeanInBits>(route, pool, layout, options.bits);
}

}  // namespace thinwire::optim
