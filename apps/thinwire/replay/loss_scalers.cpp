// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/families.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/thinwire/replay/trajectory.h"
#include "thinwire/core/error.h"
#include "thinwire/deepspeed/loss_scaler.h"

namespace thinwire::replay {

namespace fs = std::filesystem;
using nlohmann::json;
using precision::LossScaler;
using precision::LossScalerOptions;

namespace {

// A file that is not JSON has no rows; the case of row 0 reports it.
std::shared_ptr<const json> read(const fs::path& file) {
  std::ifstream stream(file);
  return std::make_shared<json>(json::parse(stream, nullptr, false));
}

LossScalerOptions static_scale(double scale) {
  return {.initial_scale = scale, .dynamic = false};
}

// Options of DynamicLossScaler by itself.
LossScalerOptions dynamic_options(const json& row) {
  require_known(
      row,
      {"init", "window", "min", "delayed_shift", "consecutive_hysteresis",
       "raise_error", "seq", "scales", "raised_at", "end"},
      "row");
  return deepspeed::zero_loss_scaler(
      {.initial_scale = row.at("init").get<double>(),
       .window = row.at("window").get<std::int64_t>(),
       .hysteresis = row.at("delayed_shift").get<std::int64_t>(),
       .consecutive_hysteresis = row.at("consecutive_hysteresis").get<bool>(),
       .min_scale = row.at("min").get<double>(),
       .at_minimum = row.at("raise_error").get<bool>()
                         ? precision::AtMinimum::kStop
                         : precision::AtMinimum::kHold});
}

// Options of the scaler inside FP16_Optimizer and FP16_UnfusedOptimizer.
LossScalerOptions wrapper_options(const json& row, bool fused) {
  require_known(row,
                {"dynamic", "args", "static", "low_precision",
                 "initial_dynamic_scale", "seq", "scales", "end"},
                "row");
  if (row.value("low_precision", "fp16") != "fp16") return static_scale(1);
  if (!row.at("dynamic").get<bool>())
    return static_scale(row.at("static").get<double>());
  LossScalerOptions options{.initial_scale = fused ? 4294967296.0 : 65536.0,
                            .min_scale = fused ? 1 : 0.25};
  options.initial_scale =
      row.value("initial_dynamic_scale", options.initial_scale);
  if (const json& args = row.at("args"); !args.is_null()) {
    require_known(args, {"init_scale", "scale_window", "min_scale"}, "args");
    options.initial_scale = args.at("init_scale").get<double>();
    options.window = args.at("scale_window").get<std::int64_t>();
    options.min_scale = args.at("min_scale").get<double>();
  }
  return deepspeed::wrapper_loss_scaler(options);
}

// Options of CreateLossScaler, which knows the precision. Only the file's
// description has its arguments.
LossScalerOptions created_options(const json& row) {
  require_known(row, {"dtype", "dynamic", "static", "cls", "scales"}, "row");
  if (row.at("dtype") != "half") return static_scale(1);
  if (!row.at("dynamic").get<bool>())
    return static_scale(row.at("static").get<double>());
  return deepspeed::zero_loss_scaler({.window = 2, .hysteresis = 1});
}

LossScalerOptions options_of(const std::string& kind, const json& row) {
  if (kind == "dynamic") return dynamic_options(row);
  if (kind == "fused" || kind == "unfused")
    return wrapper_options(row, kind == "fused");
  if (kind == "create") return created_options(row);
  throw Unsupported(fmt::format("loss scalers \"{}\"", kind));
}

std::string difference(const char* what, std::size_t at, const json& got,
                       const json& want) {
  return fmt::format("step {}, {}: got {} want {}", at, what, got.dump(),
                     want.dump());
}

// Returns the first difference, or an empty text.
std::string compare_end(const LossScaler& scaler, const json& end) {
  StateDict state;
  scaler.save(state);
  const auto differs = [&](const char* name, const char* ours) {
    return end.contains(name) && !end.at(name).is_null() &&
           end.at(name) != state.integer(ours);
  };
  for (const auto& [name, ours] :
       {std::pair{"cur_iter", "loss_scale_steps"},
        std::pair{"last_overflow_iter", "loss_scale_last_overflow"},
        std::pair{"cur_hysteresis", "loss_scale_overflows_left"}})
    if (differs(name, ours))
      return fmt::format("end, {}: got {} want {}", name, state.integer(ours),
                         end.at(name).dump());
  return {};
}

}  // namespace

bool holds_loss_scalers(const fs::path& folder) {
  return folder.filename() == "loss_scalers" ||
         fs::is_regular_file(folder / "sequences.json");
}

std::vector<CaseFolder> loss_scaler_cases(const CaseFolder& folder) {
  std::vector<CaseFolder> cases;
  const auto sequences = read(folder.path / "sequences.json");
  for (const char* kind : {"create", "dynamic", "fused", "unfused"}) {
    const fs::path file = folder.path / fmt::format("{}.json", kind);
    if (!fs::is_regular_file(file)) continue;
    const auto content = read(file);
    std::size_t rows = 1;
    if (content->is_object() && content->contains("rows"))
      rows = content->at("rows").size();
    for (std::size_t row = 0; row < rows; ++row)
      cases.push_back({fmt::format("{}/{}.{}", folder.name, kind, row),
                       folder.path, folder.not_required,
                       LossScalerRow{kind, row, content, sequences}});
  }
  return cases;
}

Result replay_loss_scaler(const CaseFolder& folder) {
  const std::string& kind = folder.row->kind;
  if (folder.row->file->is_discarded())
    throw BrokenCase(fmt::format("{}.json is no JSON", kind));
  if (folder.row->sequences->is_discarded())
    throw BrokenCase("sequences.json is missing or no JSON");
  const json& row = folder.row->file->at("rows").at(folder.row->index);
  const json& sequence = folder.row->sequences->at(row.value("seq", "burst"));
  LossScaler scaler = deepspeed::loss_scaler(options_of(kind, row));
  const json& scales = row.at("scales");
  const json raised_at = row.value("raised_at", json());
  for (std::size_t t = 0; t < sequence.size(); ++t) {
    const bool overflow = sequence[t] != 0;
    try {
      scaler.update(overflow);
    } catch (const Error&) {
      if (raised_at == t) break;
      return {Outcome::kFailed,
              difference("stopped at", t, json(t), raised_at)};
    }
    if (raised_at == t)
      return {Outcome::kFailed, difference("stopped at", t, json(), raised_at)};
    if (scales.at(t) != scaler.scale())
      return {Outcome::kFailed,
              difference("scale", t, json(scaler.scale()), scales.at(t))};
  }
  if (row.contains("end"))
    if (const std::string end = compare_end(scaler, row.at("end"));
        !end.empty())
      return {Outcome::kFailed, end};
  return {Outcome::kPassed, fmt::format("({} scales)", scales.size())};
}

}  // namespace thinwire::replay
