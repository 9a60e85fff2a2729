// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/scratch_folder.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace thinwire::apps::bench {

namespace {

volatile std::sig_atomic_t signal_came = 0;

void note_signal(int number) { signal_came = number; }

}  // namespace

ScratchFolder::ScratchFolder(const std::string& parent)
    : path_(parent + "/thinwire_bench_XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr)
    throw std::runtime_error(
        fmt::format("no folder can be made in '{}'", parent));
  signal_came = 0;
  interrupted_ = std::signal(SIGINT, note_signal);
  terminated_ = std::signal(SIGTERM, note_signal);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  std::signal(SIGINT, interrupted_);
  std::signal(SIGTERM, terminated_);
}

void ScratchFolder::check() {
  if (signal_came != 0)
    throw std::runtime_error(
        fmt::format("stopped by signal {}", static_cast<int>(signal_came)));
}

}  // namespace thinwire::apps::bench
