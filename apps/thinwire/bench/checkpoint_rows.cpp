// SPDX-License-Identifier: Apache-2.0
// Saves and loads of one rank with Adam in fp32, as users call them. Each is
// compared with the plainest code that moves the same bytes.
#include "apps/thinwire/bench/checkpoint_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "apps/thinwire/bench/measure.h"
#include "apps/thinwire/bench/raw_files.h"
#include "apps/thinwire/bench/saved_training.h"
#include "apps/thinwire/bench/scratch_folder.h"
#include "thinwire/comm/local.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::apps::bench {

namespace {

using Work = CheckpointRow::Work;

constexpr double kSavedBytes = 12;  // per element: weights and two moments

// A group of one rank.
struct Alone {
  explicit Alone(const SavedTraining::Settings& settings)
      : comm(std::move(comm::make_local_group(1).front())),
        training(*comm, settings) {
    training.save();
    training.wait();
  }

  std::unique_ptr<comm::Communicator> comm;
  SavedTraining training;
};

// Returns a training that has saved once, so that kept buffers exist.
std::shared_ptr<SavedTraining> saved(const SavedTraining::Settings& settings) {
  const auto alone = std::make_shared<Alone>(settings);
  return {alone, &alone->training};
}

// Writes new files every time, after everything written before was removed.
Work prepare_save(std::size_t elements, const std::string& folder,
                  bool durable) {
  const auto training = saved({.elements = elements,
                               .folder = folder,
                               .options = {.durable = durable}});
  const auto raw = std::make_shared<RawFiles>(folder, training->file_bytes());
  return {.row = {[training] { training->save(); },
                  [training] { training->remove(); }},
          .limit = {[raw, durable] { raw->write(durable); },
                    [raw] { raw->remove(); }},
          .bytes_per_element = kSavedBytes};
}

Work prepare_save_durably(std::size_t n, const std::string& folder) {
  return prepare_save(n, folder, true);
}

Work prepare_save_in_memory(std::size_t n, const std::string& folder) {
  return prepare_save(n, folder, false);
}

Work prepare_load(std::size_t elements, const std::string& folder) {
  const auto training = saved(
      {.elements = elements, .folder = folder, .options = {.durable = false}});
  return {.row = {[training] { training->load(); }},
          .limit = {[files = training->files()] { read_files(files); }},
          .bytes_per_element = kSavedBytes};
}

// Measures how long an asynchronous save blocks its caller.
Work prepare_snapshot(std::size_t elements, const std::string& folder) {
  const auto training =
      saved({.elements = elements,
             .folder = folder,
             .options = {.asynchronous = true, .durable = false}});
  const std::size_t size = elements * static_cast<std::size_t>(kSavedBytes);
  const auto from = std::make_shared<Buffer>(Buffer::of<std::uint8_t>(size));
  const auto to = std::make_shared<Buffer>(Buffer::of<std::uint8_t>(size));
  const auto wait = [training] { training->remove(); };
  return {.row = {[training] { training->save(); }, wait},
          .limit = {[from, to] {
                      std::memcpy(to->data(), from->data(), from->bytes());
                    },
                    wait},
          .bytes_per_element = kSavedBytes};
}

Work prepare_fixed_cost(std::size_t elements, const std::string& folder) {
  const auto training = saved({.elements = elements, .folder = folder});
  const std::uint64_t bytes = training->file_bytes().front();
  const std::string raw = folder + "/raw";
  std::filesystem::create_directory(raw);
  return {.row = {[training] { training->save(); },
                  [training] { training->remove(); }},
          .limit = {[raw, bytes] { small_commit(raw, bytes); },
                    [raw] { remove_small_commit(raw); }},
          .bytes_per_element = kSavedBytes};
}

// Steps on all processors for ten times as long as a save takes, with and
// without a save behind the steps. Only Adam steps, because nothing else
// competes more for the memory that the save needs.
Work prepare_steps_while_saving(std::size_t elements,
                                const std::string& folder) {
  constexpr double kSaves = 10;
  constexpr double kAdamBytes = 28;
  const int threads =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto training = saved({.elements = elements,
                               .folder = folder,
                               .threads = threads,
                               .options = {.asynchronous = true}});
  const auto step = [training] { training->step(); };
  const auto save_and_wait = [training] {
    training->save();
    training->wait();
  };
  training->remove();
  const double save_seconds = seconds_of(save_and_wait);
  step();
  const int steps =
      std::max(1, static_cast<int>(kSaves * save_seconds / seconds_of(step)));
  const auto many = [step, steps] {
    for (int i = 0; i < steps; ++i) step();
  };
  const auto before = [training] { training->remove(); };
  return {.row = {[training, many] {
                    training->save();
                    many();
                    training->wait();
                  },
                  before},
          .limit = {many, before},
          .bytes_per_element = kAdamBytes * steps,
          .threads = threads};
}

std::string folder_of(const CheckpointRow& row) {
  return row.in_memory ? ScratchFolder::in_memory() : ".";
}

std::size_t elements_of(const CheckpointRow& row, std::size_t elements) {
  return std::min(elements, row.most_elements);
}

// Checks for signals between two rounds.
Variant interruptible(const Variant& variant) {
  return {variant.run, [before = variant.before] {
            ScratchFolder::check();
            if (before) before();
          }};
}

}  // namespace

std::span<const CheckpointRow> checkpoint_rows() {
  constexpr std::size_t kAny = ~std::size_t{0};
  static const std::vector<CheckpointRow> rows = {
      {"checkpoint/save@disk", "fallocate, pwrite, fsync", false, kAny,
       prepare_save_durably},
      {"checkpoint/save@tmpfs", "fallocate, pwrite", true, kAny,
       prepare_save_in_memory},
      {"checkpoint/load", "pread", true, kAny, prepare_load},
      {"checkpoint/snapshot", "memcpy", true, kAny, prepare_snapshot},
      {"checkpoint/fixed_cost", "7 fsyncs", false, 256, prepare_fixed_cost},
      {"checkpoint/steps_while_saving", "the same steps", false,
       std::size_t{1} << 23, prepare_steps_while_saving},
  };
  return rows;
}

std::string why_not(const CheckpointRow& row, std::size_t elements) {
  const std::string parent = folder_of(row);
  if (parent.empty())
    return fmt::format("{} needs /dev/shm, which does not exist", row.name);
  // Space for the checkpoint, the limit's files, and the reserve of a save.
  const std::uint64_t needed =
      static_cast<std::uint64_t>(
          static_cast<double>(elements_of(row, elements)) * kSavedBytes * 2.1) +
      (std::uint64_t{64} << 20);
  const std::uint64_t free = ScratchFolder::free_bytes(parent);
  if (free >= needed) return "";
  return fmt::format(
      "{} needs {} bytes in '{}', where {} are free; --elements sets the size",
      row.name, needed, parent, free);
}

Result measure(const CheckpointRow& row, const Settings& settings) {
  const std::size_t elements = elements_of(row, settings.elements);
  const ScratchFolder folder(folder_of(row));
  const Work work = row.prepare(elements, folder.path());
  const std::array<Variant, 2> variants = {interruptible(work.row),
                                           interruptible(work.limit)};
  const Interleaved measured = interleave(variants, settings.rounds);
  say_if_busy(row.name, measured);
  return {.name = row.name,
          .elements = elements,
          .threads = work.threads,
          .prefetch = kernels::prefetches(),
          .seconds = median(measured.seconds[0]),
          .bytes_per_element = work.bytes_per_element,
          .limit = row.limit,
          .of_limit = median_ratio(measured.seconds[1], measured.seconds[0])};
}

}  // namespace thinwire::apps::bench
