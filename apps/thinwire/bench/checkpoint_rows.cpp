// SPDX-License-Identifier: Apache-2.0
// Saves and loads of one rank with Adam in fp32, as users call them. Each is
// compared with the plainest code that moves the same bytes.
#include "apps/thinwire/bench/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "apps/thinwire/bench/saved_training.h"
#include "apps/thinwire/bench/scratch_folder.h"
#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"
#include "thinwire/comm/local.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::apps::bench {

namespace {

using Work = CheckpointRow::Work;
using checkpoint::FileSystem;
using checkpoint::kChunkBytes;
using checkpoint::posix_file_system;

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

std::span<std::byte> bytes_of(Buffer& memory) {
  return std::as_writable_bytes(memory.as<std::uint8_t>());
}

// Files of given sizes, and only the calls that write them: create, fallocate,
// pwrite in pieces of 4 MiB, and fsync if `durable`. No checkpoint of the same
// bytes can be faster. The memory is no longer in the cache.
struct RawFiles {
  RawFiles(std::string parent, std::vector<std::uint64_t> bytes)
      : folder(std::move(parent)),
        sizes(std::move(bytes)),
        memory(Buffer::of<std::uint8_t>(
            std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}))) {}

  [[nodiscard]] std::string path(std::size_t file) const {
    return fmt::format("{}/raw-{}", folder, file);
  }
  void write(bool durable) {
    std::span<const std::byte> rest = bytes_of(memory);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto file = posix_file_system().create(path(i));
      file->allocate(sizes[i]);
      for (std::uint64_t at = 0; at < sizes[i]; at += kChunkBytes) {
        const auto count = std::min(kChunkBytes, sizes[i] - at);
        file->write_at(at, rest.first(count));
        rest = rest.subspan(count);
      }
      if (durable) file->sync();
      file->close();
    }
  }
  void remove() {
    for (std::size_t i = 0; i < sizes.size(); ++i)
      std::filesystem::remove(path(i));
  }

  std::string folder;
  std::vector<std::uint64_t> sizes;
  Buffer memory;
};

// Reads all of these files with pread, in pieces of 4 MiB. Each piece has new
// memory, as in a load that keeps its old values until all is read.
void read_files(const std::vector<std::string>& paths) {
  std::vector<Buffer> kept;
  for (const std::string& path : paths) {
    const auto file = posix_file_system().open(path, false);
    const std::uint64_t size = file->size();
    kept.emplace_back(size, DType::kUInt8, Fill::kNone);
    const std::span<std::byte> to = bytes_of(kept.back());
    for (std::uint64_t at = 0; at < size; at += kChunkBytes)
      file->read_at(at, to.subspan(at, std::min(kChunkBytes, size - at)));
  }
}

void write_small(FileSystem& files, const std::string& path,
                 std::span<const std::byte> bytes) {
  const auto file = files.create(path);
  file->allocate(bytes.size());
  file->write_at(0, bytes);
  file->sync();
  file->close();
}

// Does what even the smallest checkpoint needs: its directory, five small
// files, two of them renamed, and seven fsyncs.
void small_commit(const std::string& root, std::uint64_t file_bytes) {
  FileSystem& files = posix_file_system();
  const std::vector<std::byte> data(file_bytes);
  const std::string partial = root + "/new";
  files.make_directory(partial);
  write_small(files, partial + "/weights", data);
  write_small(files, partial + "/states", data);
  files.sync_directory(partial);
  write_small(files, partial + "/manifest.tmp", data);
  files.rename(partial + "/manifest.tmp", partial + "/manifest");
  files.sync_directory(partial);
  files.rename(partial, root + "/done");
  write_small(files, root + "/latest.tmp", data);
  files.rename(root + "/latest.tmp", root + "/latest");
  files.sync_directory(root);
}

// Writes new files every time, after everything written before was removed.
template <bool kDurable>
Work prepare_save(std::size_t elements, const std::string& folder) {
  const auto training = saved({.elements = elements,
                               .folder = folder,
                               .options = {.durable = kDurable}});
  const auto raw = std::make_shared<RawFiles>(folder, training->file_bytes());
  return {.row = {[training] { training->save(); },
                  [training] { training->remove(); }},
          .limit = {[raw] { raw->write(kDurable); }, [raw] { raw->remove(); }},
          .bytes_per_element = kSavedBytes};
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
                    [raw] { std::filesystem::remove_all(raw + "/done"); }},
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
  if (!row.in_memory) return ".";
  return std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "";
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
       prepare_save<true>},
      {"checkpoint/save@tmpfs", "fallocate, pwrite", true, kAny,
       prepare_save<false>},
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
  std::error_code error;
  const auto space = std::filesystem::space(parent, error);
  const std::uint64_t free = error ? 0 : space.available;
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
