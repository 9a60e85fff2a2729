// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/report/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "apps/train_gpt/report/metrics.h"
#include "thinwire/core/error.h"

namespace thinwire::train_gpt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kSummary = "summary.json";
constexpr const char* kConfig = "config.json";
constexpr const char* kReport = "report.html";

[[noreturn]] void fail(const fs::path& path, const std::string& why) {
  throw Error(ErrorCode::kUnavailable,
              fmt::format("{}: {}", path.string(), why));
}

Json to_json(const MemoryOfRank& memory) {
  return {{"parameters", memory.parameters}, {"gradients", memory.gradients},
          {"states", memory.states},         {"buckets", memory.buckets},
          {"other", memory.other},           {"peak", memory.peak}};
}

MemoryOfRank read_memory(const Json& json) {
  return {.parameters = json.at("parameters"),
          .gradients = json.at("gradients"),
          .states = json.at("states"),
          .buckets = json.at("buckets"),
          .other = json.at("other"),
          .peak = json.at("peak")};
}

Json to_json(const Summary& summary) {
  Json json = {{"optimizer", summary.optimizer},
               {"semantics", summary.semantics},
               {"ranks", summary.ranks},
               {"steps", summary.steps},
               {"params", summary.params},
               {"final_val_loss", summary.final_val_loss},
               {"final_val_bits_per_byte", summary.final_val_bits_per_byte},
               {"bytes_sent_per_rank", summary.bytes_sent_per_rank},
               {"seconds", summary.seconds},
               {"tokens_per_second", summary.tokens_per_second},
               {"params_checksum", summary.params_checksum},
               {"precision", summary.precision},
               {"skipped_steps", summary.skipped_steps},
               {"zero", summary.zero},
               {"offload", summary.offload},
               {"memory", to_json(summary.memory)},
               {"saves", summary.saves},
               {"save_seconds", summary.save_seconds}};
  if (!summary.zero_bits.empty()) json["zero_bits"] = summary.zero_bits;
  if (summary.resumed_from) json["resumed_from"] = *summary.resumed_from;
  if (summary.stopped_at) {
    json["stopped_at"] = *summary.stopped_at;
    json["stopped_by"] = summary.stopped_by;
  }
  return json;
}

// As --config reads it.
Json to_json(const Settings& settings, const std::vector<std::string>& data,
             const std::string& config) {
  Json flags = {{"data", data}};
  for (const auto& [name, value] : settings) {
    Json parsed = Json::parse(value, nullptr, /*allow_exceptions=*/false);
    flags[name] = parsed.is_number() || parsed.is_array() ? std::move(parsed)
                                                          : Json(value);
  }
  Json all = config.empty() ? Json::object() : Json::parse(config);
  all["train_gpt"] = std::move(flags);
  return all;
}

std::ifstream open_to_read(const fs::path& path) {
  std::ifstream file(path);
  if (!file)
    fail(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  return file;
}

Summary read_summary(const Json& json) {
  Summary summary{
      .optimizer = json.at("optimizer"),
      .semantics = json.at("semantics"),
      .precision = json.at("precision"),
      .ranks = json.at("ranks"),
      .steps = json.at("steps"),
      .params = json.at("params"),
      .final_val_loss = number(json, "final_val_loss"),
      .final_val_bits_per_byte = number(json, "final_val_bits_per_byte"),
      .bytes_sent_per_rank = json.at("bytes_sent_per_rank"),
      .seconds = json.at("seconds"),
      .tokens_per_second = json.at("tokens_per_second"),
      .skipped_steps = json.at("skipped_steps"),
      .zero = json.at("zero"),
      .offload = json.at("offload"),
      .memory = read_memory(json.at("memory")),
      .params_checksum = json.at("params_checksum")};
  summary.zero_bits = json.value("zero_bits", std::string());
  summary.saves = json.value("saves", std::int64_t{0});
  summary.save_seconds = json.value("save_seconds", 0.0);
  if (json.contains("resumed_from"))
    summary.resumed_from = json.at("resumed_from");
  if (json.contains("stopped_at")) {
    summary.stopped_at = json.at("stopped_at");
    summary.stopped_by = json.at("stopped_by");
  }
  return summary;
}

std::string setting_of(const RunRecord& run, std::string_view name) {
  for (const auto& [key, value] : run.settings)
    if (key == name) return value;
  return {};
}

// 0 where it is none, or not said.
std::int64_t number_of(const RunRecord& run, std::string_view name) {
  const std::string text = setting_of(run, name);
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Summary summary_of_killed(const RunRecord& run) {
  Summary summary{.optimizer = setting_of(run, "optimizer"),
                  .semantics = setting_of(run, "semantics"),
                  .precision = setting_of(run, "precision"),
                  .ranks = 0,
                  .steps = number_of(run, "steps"),
                  .zero = static_cast<int>(number_of(run, "zero")),
                  .offload = setting_of(run, "offload") == "true",
                  .stopped_at = run.steps.empty() ? 0 : run.steps.back().step};
  summary.add(run.totals());
  const std::int64_t of_rank = number_of(run, "batch") *
                               number_of(run, "accumulate") *
                               number_of(run, "context");
  if (of_rank > 0 && !run.steps.empty())
    summary.ranks = static_cast<int>(
        static_cast<std::int64_t>(run.steps.front().tokens) / of_rank);
  if (!run.steps.empty()) summary.memory.peak = run.steps.back().memory_bytes;
  return summary;
}

// The paths of `data` and `folder` need not exist.
void require_outside(const fs::path& folder,
                     const std::vector<std::string>& data) {
  const fs::path out = fs::weakly_canonical(folder) / "";
  for (const std::string& path : data) {
    const fs::path file = fs::weakly_canonical(path);
    const auto [differs, unused] =
        std::mismatch(out.begin(), out.end(), file.begin(), file.end());
    // The last part of `out` is empty: it ends in a slash.
    if (differs != out.end() && !differs->empty()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--data: '{}' lies in the folder that the run "
                            "writes to, --out '{}'; give another one",
                            path, folder.string()));
  }
}

// Runs `read` on the opened file and names the file if it is not what it
// should be.
template <class Read>
void read_json(const fs::path& path, Read&& read) {
  std::ifstream file = open_to_read(path);
  try {
    read(file);
  } catch (const nlohmann::json::exception& error) {
    fail(path, fmt::format("is not what train_gpt writes: {}", error.what()));
  }
}

}  // namespace

std::optional<double> RunRecord::bytes_per_step(std::string_view phase) const {
  double sum = 0;
  double count = 0;
  for (const StepRow& row : steps) {
    if (row.phase != phase) continue;
    sum += static_cast<double>(row.bytes_sent);
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

void Totals::add(const StepRow& row) {
  bytes_sent += row.bytes_sent;
  seconds += row.seconds;
  tokens += static_cast<double>(row.tokens);
}

Totals RunRecord::totals() const {
  Totals totals;
  for (const StepRow& row : steps) totals.add(row);
  if (!validations.empty()) totals.val_loss = validations.back().val_loss;
  return totals;
}

void Summary::add(const Totals& totals) {
  bytes_sent_per_rank += totals.bytes_sent;
  seconds += totals.seconds;
  tokens_per_second = seconds > 0 ? totals.tokens / seconds : 0;
  final_val_loss =
      totals.val_loss.value_or(std::numeric_limits<double>::quiet_NaN());
  final_val_bits_per_byte = final_val_loss / std::numbers::ln2;
}

double RunRecord::rounds_per_step() const {
  const auto rounds =
      std::count_if(steps.begin(), steps.end(), [](const StepRow& row) {
        return row.bytes_sent > 0 && row.phase != "local";
      });
  return static_cast<double>(rounds) /
         static_cast<double>(std::max<std::size_t>(steps.size(), 1));
}

bool is_written_by_run(const fs::path& folder, const fs::path& file) {
  // A path that cannot be followed (a loop of links, no right to look) is
  // compared as it is written.
  const auto plain = [](const fs::path& path) {
    std::error_code error;
    fs::path whole = fs::absolute(path, error);
    if (error) whole = path;
    const fs::path followed = fs::weakly_canonical(whole, error);
    return error ? whole.lexically_normal() : followed;
  };
  const fs::path given = plain(file);
  for (const char* own : {kMetrics, kSummary, kConfig, kReport})
    if (plain(folder / own) == given) return true;
  return false;
}

RunWriter::RunWriter(fs::path folder, Settings settings,
                     const std::vector<std::string>& data, std::string config)
    : folder_(std::move(folder)),
      data_(data),
      config_(std::move(config)),
      settings_(std::move(settings)) {
  require_outside(folder_, data);
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(folder_, fmt::format("cannot be made: {}", error.message()));
  lock_.emplace(folder_);
}

void RunWriter::write_config() {
  std::error_code error;
  for (const char* old : {kSummary, kReport}) fs::remove(folder_ / old, error);
  write_file(folder_ / kConfig,
             to_json(settings_, data_, config_).dump(2) + "\n");
}

void RunWriter::begin() {
  write_config();
  metrics_.emplace((folder_ / kMetrics).string(),
                   engine::LineFile::Mode::kTruncate);
}

// A run that is killed meanwhile leaves the old rows or the new ones.
void RunWriter::go_on(std::int64_t step, const Totals& totals) {
  const fs::path path = folder_ / kMetrics;
  RunRecord run;
  if (fs::exists(path))
    read_json(path, [&](std::istream& file) {
      read_lines(file, /*was_killed=*/true, run);
    });
  const auto is_later = [step](const auto& row) { return row.step > step; };
  std::erase_if(run.steps, is_later);
  std::erase_if(run.validations, is_later);
  const Totals kept = run.totals();
  totals_ = {.bytes_sent = std::max(totals.bytes_sent, kept.bytes_sent),
             .seconds = std::max(totals.seconds, kept.seconds),
             .tokens = std::max(totals.tokens, kept.tokens),
             .val_loss = kept.val_loss ? kept.val_loss : totals.val_loss};
  if (!run.steps.empty()) newest_ = run.steps.back();
  write_config();
  fs::path temporary = path;
  temporary += ".tmp";
  write_file(temporary, lines_of(run));
  std::error_code error;
  fs::rename(temporary, path, error);
  if (error) fail(path, fmt::format("cannot be replaced: {}", error.message()));
  metrics_.emplace(path.string());
}

void RunWriter::add(StepRow row) {
  metrics_->write(line_of(row));
  totals_.add(row);
  newest_ = std::move(row);
}

void RunWriter::add(ValidationRow row) {
  metrics_->write(line_of(row));
  totals_.val_loss = row.val_loss;
}

// A metrics.jsonl that could not be written costs the report its rows only.
RunRecord RunWriter::finish(Summary summary) const {
  RunRecord run{.summary = std::move(summary), .settings = settings_};
  write_file(folder_ / kSummary, to_json(run.summary).dump(2) + "\n");
  const fs::path path = folder_ / kMetrics;
  if (fs::is_regular_file(path))
    read_json(path, [&](std::istream& file) {
      read_lines(file, /*was_killed=*/true, run);
    });
  return run;
}

RunRecord read_run(const fs::path& folder) {
  RunRecord run;
  const bool was_killed =
      !fs::exists(folder / kSummary) && fs::exists(folder / kMetrics);
  if (!was_killed)
    read_json(folder / kSummary, [&](std::istream& file) {
      run.summary = read_summary(Json::parse(file));
    });
  read_json(folder / kMetrics,
            [&](std::istream& file) { read_lines(file, was_killed, run); });
  read_json(folder / kConfig, [&](std::istream& file) {
    const Json config = Json::parse(file);
    for (const auto& [name, value] : config.at("train_gpt").items()) {
      if (name == "data") continue;  // Paths mean nothing elsewhere.
      run.settings.emplace_back(
          name, value.is_string() ? value.get<std::string>() : value.dump());
    }
  });
  if (was_killed) run.summary = summary_of_killed(run);
  return run;
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file)
    fail(path, fmt::format("cannot be written: {}", std::strerror(errno)));
}

}  // namespace thinwire::train_gpt
