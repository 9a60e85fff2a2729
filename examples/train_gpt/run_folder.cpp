// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <numbers>

#include "thinwire/core/error.h"
#include "thinwire/core/log.h"

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

std::string line_of(const StepRow& row) {
  Json line{{"step", row.step},
            {"loss", row.loss},
            {"phase", row.phase},
            {"tokens", row.tokens},
            {"bytes_sent", row.bytes_sent},
            {"seconds", row.seconds},
            {"wait_seconds", row.wait_seconds},
            {"update_seconds", row.update_seconds}};
  for (const auto& [key, value] : row.more.items())
    if (!line.contains(key)) line[key] = value;
  return line.dump();
}

// JSON has null for losses that are not finite.
double number(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN()
                         : value.get<double>();
}

// Reads the keys that Totals and newest() need.
StepRow step_from(const Json& line) {
  return {.step = line.at("step"),
          .loss = number(line.at("loss")),
          .tokens = line.at("tokens"),
          .bytes_sent = line.at("bytes_sent"),
          .seconds = line.at("seconds")};
}

// The part of a metrics.jsonl that a resumed run keeps.
struct Kept {
  std::string lines{};
  Totals totals{};
  std::optional<StepRow> newest{};
};

// Reads the rows up to step `last`. If the run was killed, the last line may be
// torn and is left out.
Kept read_rows(const fs::path& path, std::int64_t last) {
  std::ifstream file(path);
  if (!file)
    fail(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  Kept kept;
  try {
    for (std::string line; std::getline(file, line) && !file.eof();) {
      const Json row = Json::parse(line);
      if (row.at("step").get<std::int64_t>() > last) continue;
      if (row.contains("val_loss")) {
        kept.totals.val_loss = number(row.at("val_loss"));
      } else {
        kept.newest = step_from(row);
        kept.totals.add(*kept.newest);
      }
      kept.lines += line + "\n";
    }
  } catch (const nlohmann::json::exception& error) {
    fail(path, fmt::format("is not what train_gpt writes: {}", error.what()));
  }
  return kept;
}

// Locks the folder. Returns the open lock file, which contains the number of
// this process.
int lock(const fs::path& folder) {
  const fs::path path = folder / ".lock";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) fail(path, std::strerror(errno));
  // On a file system without locks the run continues without one.
  if (::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    std::array<char, 32> holder{};
    static_cast<void>(::pread(file, holder.data(), holder.size() - 1, 0));
    ::close(file);
    throw Error(ErrorCode::kUnavailable,
                fmt::format("--out: another run is writing to '{}' (process "
                            "{}); give another folder, or wait for its end",
                            folder.string(), holder.data()));
  }
  const std::string own = std::to_string(::getpid());
  if (::ftruncate(file, 0) != 0 || ::write(file, own.data(), own.size()) < 0)
    log(LogLevel::kWarning,
        fmt::format("{}: {}", path.string(), std::strerror(errno)));
  return file;
}

}  // namespace

void Totals::add(const StepRow& row) {
  bytes_sent += row.bytes_sent;
  seconds += row.seconds;
  tokens += static_cast<double>(row.tokens);
}

Json summary_of(const Totals& totals) {
  Json summary = Json::parse(R"({
    "optimizer": "", "semantics": "", "ranks": 0, "steps": 0, "params": 0,
    "final_val_loss": null, "final_val_bits_per_byte": null,
    "bytes_sent_per_rank": 0, "seconds": 0.0, "tokens_per_second": 0.0,
    "params_checksum": "", "precision": "", "skipped_steps": 0, "zero": 0,
    "offload": false, "memory": {}, "saves": 0, "save_seconds": 0.0})");
  if (totals.val_loss) {
    summary["final_val_loss"] = *totals.val_loss;
    summary["final_val_bits_per_byte"] = *totals.val_loss / std::numbers::ln2;
  }
  summary["bytes_sent_per_rank"] = totals.bytes_sent;
  summary["seconds"] = totals.seconds;
  if (totals.seconds > 0)
    summary["tokens_per_second"] = totals.tokens / totals.seconds;
  return summary;
}

RunWriter::RunWriter(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(folder_, fmt::format("cannot be made: {}", error.message()));
  lock_ = lock(folder_);
}

RunWriter::~RunWriter() { ::close(lock_); }

void RunWriter::write_config(const std::string& config) const {
  std::error_code error;
  for (const char* old : {kSummary, kReport}) fs::remove(folder_ / old, error);
  write_file(folder_ / kConfig, config);
}

void RunWriter::begin(const std::string& config) {
  write_config(config);
  metrics_.emplace((folder_ / kMetrics).string(),
                   engine::LineFile::Mode::kTruncate);
}

// If the run is killed here, either the old rows or the new ones remain.
void RunWriter::resume(const std::string& config, std::int64_t step,
                       const Totals& totals) {
  const fs::path path = folder_ / kMetrics;
  Kept kept;
  if (fs::exists(path)) kept = read_rows(path, step);
  totals_ = {.bytes_sent = std::max(totals.bytes_sent, kept.totals.bytes_sent),
             .seconds = std::max(totals.seconds, kept.totals.seconds),
             .tokens = std::max(totals.tokens, kept.totals.tokens),
             .val_loss =
                 kept.totals.val_loss ? kept.totals.val_loss : totals.val_loss};
  newest_ = std::move(kept.newest);
  write_config(config);
  fs::path temporary = path;
  temporary += ".tmp";
  write_file(temporary, kept.lines);
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
  metrics_->write(Json{{"step", row.step}, {"val_loss", row.val_loss}}.dump());
  totals_.val_loss = row.val_loss;
}

void RunWriter::finish(const Json& summary) const {
  write_file(folder_ / kSummary, summary.dump(2) + "\n");
}

std::string config_text(const Settings& settings,
                        const std::vector<std::string>& data,
                        const std::string& engine) {
  Json options = {{"data", data}};
  for (const auto& [name, value] : settings) {
    Json parsed = Json::parse(value, nullptr, /*allow_exceptions=*/false);
    options[name] = parsed.is_number() ? std::move(parsed) : Json(value);
  }
  Json all = Json::parse(engine);
  all[kOwnObject] = std::move(options);
  return all.dump(2) + "\n";
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file)
    fail(path, fmt::format("cannot be written: {}", std::strerror(errno)));
}

}  // namespace thinwire::train_gpt
