// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options/saving.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <limits>
#include <sstream>

#include "apps/train_gpt/options/usage_error.h"
#include "core/duration.h"
#include "thinwire/core/env.h"

namespace thinwire::train_gpt {
namespace {

constexpr std::int64_t kMostSteps = std::numeric_limits<std::int32_t>::max();

constexpr std::pair<std::string_view, int> kSignals[] = {
    {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"TERM", SIGTERM}, {"INT", SIGINT}};

void require_count(std::string_view flag, std::int64_t value) {
  if (value < 0 || value > kMostSteps)
    throw UsageError(
        fmt::format("{} must be in 0 .. {}, got {}", flag, kMostSteps, value));
}

int signal_from(const std::string& name) {
  for (const auto& [known, signal] : kSignals)
    if (known == name) return signal;
  throw UsageError(fmt::format(
      "--save-on must be some of USR1, USR2, TERM, INT, got '{}'", name));
}

}  // namespace

std::string describe(const Saving& saving) {
  const config::CheckpointConfig& files = saving.files;
  return fmt::format(
      "checkpoints '{}'\nsave_every {} {}\nkeep_last {}\nkeep_every {}\n"
      "save_sync {}\nresume '{}'\nresume_fallback {}\nresume_new_data {}\n",
      files.root, files.every_steps, to_text(files.every), files.keep_last,
      files.keep_every, !files.asynchronous, saving.resume,
      saving.resume_fallback, saving.resume_new_data);
}

SavingFlags::SavingFlags(CLI::App& app) : app_(app) {
  app_.add_option("--save-every", save_every_,
                  "Steps, or a time such as 10min, between checkpoints")
      ->type_name("N|TIME");
  app_.add_option("--keep-last", keep_last_,
                  "Number of newest checkpoints to keep; 0 for all")
      ->default_str("2");
  app_.add_option("--keep-every", keep_every_,
                  "Also keep the checkpoints of every N-th step; 0 for none")
      ->default_str("0");
  app_.add_option("--checkpoints", checkpoints_, "Directory of the checkpoints")
      ->type_name("DIR")
      ->default_str("OUT/checkpoints");
  app_.add_flag("--save-sync", save_sync_,
                "Wait for each checkpoint to be written");
  app_.add_option("--resume", resume_,
                  "Resume from a checkpoint, or from the newest one in a "
                  "directory; auto (or no value) uses --checkpoints, and "
                  "starts afresh if there is none")
      ->type_name("DIR|auto")
      ->expected(0, 1)
      ->default_str(kAutoResume);
  app_.add_flag(
      "--resume-fallback", resume_fallback_,
      "If the newest checkpoint is damaged, resume from the one before it");
  app_.add_flag("--resume-new-data", resume_new_data_,
                "Resume with another --data or --seed than before");
  app_.add_option("--save-on", save_on_,
                  "Signals that save the run and end it with exit code 3 "
                  "(USR1, USR2, TERM, INT); a second signal interrupts")
      ->type_name("SIGNAL,...")
      ->default_str("USR1, without mpirun also TERM and INT");
}

bool SavingFlags::is_given(const char* flag) const {
  return app_.get_option(flag)->count() > 0;
}

void SavingFlags::read_every(config::CheckpointConfig& files) const {
  files.every_steps = 0;
  files.every = std::chrono::milliseconds(0);
  if (const auto duration = duration_from(save_every_)) {
    files.every = *duration;
  } else if (!CLI::detail::lexical_cast(save_every_, files.every_steps) ||
             files.every_steps < 1 || files.every_steps > kMostSteps) {
    throw UsageError(fmt::format(
        "--save-every must be steps in 1 .. {}, or a time such as 30s, 10min "
        "or 2h, got '{}'",
        kMostSteps, save_every_));
  }
}

// mpirun sends SIGTERM when a rank has died: there is nobody to save with.
std::vector<int> SavingFlags::signals(bool is_asked_for) const {
  const bool by_mpirun = env::launched_by_mpirun();
  if (!is_given("--save-on")) {
    if (by_mpirun || !is_asked_for) return {SIGUSR1};
    return {SIGUSR1, SIGTERM, SIGINT};
  }
  std::vector<int> signals;
  std::istringstream names(save_on_);
  for (std::string name; std::getline(names, name, ',');) {
    const int signal = signal_from(name);
    if (by_mpirun && (signal == SIGTERM || signal == SIGINT))
      throw UsageError(fmt::format(
          "--save-on must be USR1 or USR2 under mpirun, which sends TERM when "
          "a rank has died, got '{}'",
          name));
    signals.push_back(signal);
  }
  if (signals.empty()) static_cast<void>(signal_from(""));
  return signals;
}

Saving SavingFlags::resolve(const config::CheckpointConfig& file,
                            const std::string& out) const {
  Saving saving{.files = file};
  config::CheckpointConfig& files = saving.files;
  if (is_given("--save-every")) read_every(files);
  if (is_given("--keep-last")) files.keep_last = keep_last_;
  if (is_given("--keep-every")) files.keep_every = keep_every_;
  require_count("--keep-last", files.keep_last);
  require_count("--keep-every", files.keep_every);
  if (is_given("--checkpoints")) files.root = checkpoints_;
  if (is_given("--checkpoints") && checkpoints_.empty())
    throw UsageError("--checkpoints must be a directory, got ''");
  const bool names_root = !files.root.empty();
  if (names_root && std::filesystem::weakly_canonical(files.root) ==
                        std::filesystem::weakly_canonical(out))
    throw UsageError(fmt::format(
        "--checkpoints must be another directory than --out, got '{}'",
        files.root));
  if (!names_root) files.root = out + "/checkpoints";
  if (save_sync_) files.asynchronous = false;
  if (is_given("--resume")) saving.resume = resume_;
  if (is_given("--resume") && resume_.empty())
    throw UsageError("--resume must be a directory or auto, got ''");
  saving.resume_fallback = resume_fallback_;
  saving.resume_new_data = resume_new_data_;
  for (const auto& [flag, given] :
       {std::pair{"--resume-fallback", resume_fallback_},
        std::pair{"--resume-new-data", resume_new_data_}})
    if (given && saving.resume.empty())
      throw UsageError(fmt::format("{} needs --resume", flag));
  saving.signals =
      signals(saving.is_periodic() || names_root || !saving.resume.empty());
  return saving;
}

}  // namespace thinwire::train_gpt
