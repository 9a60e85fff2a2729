// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/root.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "checkpoint/commit/commit.h"
#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/commit/root_directory.h"
#include "checkpoint/commit/write_file.h"
#include "checkpoint/format/fields.h"
#include "checkpoint/format/manifest.h"
#include "comm/host_name.h"
#include "core/json_text.h"
#include "core/require.h"
#include "thinwire/core/log.h"

namespace thinwire::checkpoint {

namespace {

void require_attachments(std::span<const Attachment> attachments,
                         std::span<const PlannedFile> files) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  std::set<std::string_view> taken = {kManifestName, kProbeName};
  for (const PlannedFile& file : files) taken.insert(file.name);
  for (const Attachment& one : attachments) {
    require(is_file_name(one.name), "attachments[].name",
            "letters, digits, '.', '_' and '-', with a letter or digit first, "
            "at most 128",
            one.name);
    require(taken.insert(one.name).second, "attachments[].name",
            "different from the names of other files", one.name);
    require(one.bytes.size() <= kMostBytes, "attachments[].bytes",
            "at most 16 MiB", one.bytes.size());
  }
}

// Collective.
std::vector<SavedFile> gather_files(comm::Communicator& comm,
                                    const std::vector<SavedFile>& own) {
  JsonValue list = JsonValue::array();
  for (const SavedFile& file : own) list.push_back(file_to_json(file));
  std::vector<SavedFile> all;
  for (const std::string& text : gather_texts(comm, compact_json(list)))
    for (const JsonValue& file : read_json(text))
      all.push_back(file_from_json(file, "what a rank sent"));
  return all;
}

}  // namespace

void Root::on_rank_0(const Body& body) {
  everywhere(comm_, [&] {
    if (decides()) body();
  });
}

void Root::on_leaders(const Body& body) {
  everywhere(comm_, [&] {
    if (leads()) body();
  });
}

// Looks for checkpoints whose files are on several hosts. Collective.
void Root::find_parts() {
  if (!is_shared()) root_.in_parts = find_in_parts(comm_, root_, leads());
}

void Root::open() {
  constexpr std::size_t kRunDigits = 32;
  require(
      root_.run.size() == kRunDigits &&
          root_.run.find_first_not_of("0123456789abcdef") == std::string::npos,
      "run", "32 hexadecimal digits", root_.run);
  root_.make();
  lock_ =
      root_.files.lock(root_.in(".lock"),
                       fmt::format("{} pid {}", comm::host_name(), ::getpid()));
  if (!lock_) {
    log(LogLevel::kInfo, root_.path +
                             ": this file system has no locks; another run "
                             "that writes here cannot be detected");
  }
}

void Root::look_for_newest() {
  const auto all = find_checkpoints(root_);
  require_readable(all);  // The next checkpoint must have a higher save_index.
  for (const FoundCheckpoint& one : all)
    save_index_ = std::max(save_index_, one.manifest.save_index);
  index_at_start_ = save_index_;
}

// Collective.
std::vector<std::uint64_t> Root::bytes_of_ranks(
    const Contents& contents) const {
  std::int64_t own = 0;
  for (const PlannedFile& file : contents.files)
    own += static_cast<std::int64_t>(file.header.file_bytes);
  if (decides())
    for (const Attachment& one : contents.attachments)
      own += static_cast<std::int64_t>(one.bytes.size());
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm_.size()));
  comm_.all_gather(std::span<const std::int64_t>(&own, 1), all);
  return {all.begin(), all.end()};
}

// Throws unless the disk has room for the ranks' files, the manifest, partly
// used blocks, and other programs.
void Root::require_space(const std::vector<std::uint64_t>& of_ranks) const {
  std::uint64_t bytes = 0;
  for (std::size_t r = 0; r < of_ranks.size(); ++r)
    if (leader_of(static_cast<int>(r)) == leader_of(comm_.rank()))
      bytes += of_ranks[r];
  const std::uint64_t margin = bytes / 50 + (std::uint64_t{16} << 20);
  const std::uint64_t free = root_.files.free_bytes(root_.path);
  if (free >= bytes + margin) return;
  throw Error(
      ErrorCode::kUnavailable,
      fmt::format("{}: a checkpoint needs {} bytes and a margin of {} (2 % and "
                  "16 MiB), {} are free (keep_last = k needs room for k + 1)",
                  root_.path, bytes, margin, free));
}

// Collective.
Root::Announcement Root::announce(const Contents& contents) {
  Announcement made;
  on_rank_0([&] {
    require(contents.manifest.step >= 0, "step", ">= 0",
            contents.manifest.step);
    require_attachments(contents.attachments, contents.files);
    made.step = contents.manifest.step;
    made.save_index = ++save_index_;
    made.partial = root_.partial_name(made.step);
  });
  std::istringstream text(broadcast_text(
      comm_,
      fmt::format("{}\n{}\n{}", made.step, made.save_index, made.partial)));
  text >> made.step >> made.save_index >> made.partial;
  return made;
}

std::string Root::probe(const Announcement& made) const {
  return fmt::format("{}/{}", root_.in(made.partial), kProbeName);
}

// Waits until this rank can open the file that its leader has made.
void Root::wait_for_probe(const Announcement& made) const {
  const int own = comm_.rank();
  const int maker = leader_of(own);
  if (!keep_looking(root_.files, options_.patience,
                    [&] { return root_.files.exists(probe(made)); }))
    throw Error(
        ErrorCode::kUnavailable,
        fmt::format("{} is not shared: rank {} on host {} does not see "
                    "the file that rank {} on host {} wrote",
                    root_.path, own, host_of(own), maker, host_of(maker)));
  root_.files.open(probe(made), /*follows_links=*/false)->close();
}

std::vector<SavedFile> Root::write_files(const Contents& contents,
                                         const Announcement& made,
                                         std::uint64_t total) {
  Destination to{root_.files, root_.in(made.partial), options_.durable, {}};
  std::uint64_t done = 0;
  if (decides() && contents.progress) {
    to.wrote = [&](std::uint64_t bytes) {
      contents.progress(done += bytes, total);
    };
  }
  std::vector<SavedFile> written;
  for (const PlannedFile& file : contents.files)
    written.push_back(write_file(to, file));
  if (decides()) {
    for (const Attachment& one : contents.attachments)
      written.push_back(write_file(to, one));
  }
  if (!written.empty()) root_.sync(to.directory);
  if (!is_shared())
    for (SavedFile& file : written) file.host = host_of(comm_.rank());
  return written;
}

void Root::fill_in(Manifest& manifest, const Announcement& made) const {
  manifest.id = random_id();
  manifest.run = root_.run;
  manifest.save_index = made.save_index;
  manifest.written = fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(options_.clock())));
  manifest.library = THINWIRE_VERSION;
  manifest.durable = options_.durable;
}

// If a crash leaves partial directories, tidy() adopts them if all contain the
// manifest. If one lacks the manifest, tidy() removes them. Collective.
void Root::commit_in_parts(Manifest& manifest, Announcement& made) {
  std::string text;
  on_rank_0([&] {
    fill_in(manifest, made);
    text = write_manifest(manifest);
  });
  text = broadcast_text(comm_, text);
  on_leaders([&] {
    root_.files.remove_file(probe(made));
    put_manifest(root_, made.partial, text);
  });
  // Lets the directory stay after an error.
  const std::string partial = std::exchange(made.partial, {});
  std::string replaced;
  on_leaders([&] { replaced = publish(root_, partial, made.step); });
  on_leaders([&] { remove_replaced(root_, replaced); });
}

// Collective.
void Root::write(Contents& contents, Announcement& made,
                 const std::vector<std::uint64_t>& bytes) {
  const std::uint64_t total =
      std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  made = announce(contents);
  on_leaders([&] {
    require_space(bytes);
    root_.files.make_directory(root_.in(made.partial));
    root_.files.create(probe(made))->close();
  });
  everywhere(comm_, [&] { wait_for_probe(made); });
  std::vector<SavedFile> own;
  everywhere(comm_, [&] { own = write_files(contents, made, total); });
  Manifest& manifest = contents.manifest;
  manifest.files = gather_files(comm_, own);
  if (!is_shared()) commit_in_parts(manifest, made);
  on_rank_0([&] {
    if (is_shared()) {
      fill_in(manifest, made);
      root_.files.remove_file(probe(made));
      put_manifest(root_, made.partial, write_manifest(manifest));
      remove_replaced(root_, publish(root_, made.partial, made.step));
    }
    if (contents.progress) contents.progress(total, total);
  });
}

// Called only after all ranks have finished, because another rank might still
// write.
void Root::clean_up(const Announcement& made) const noexcept {
  if (!leads() || made.partial.empty()) return;
  try {
    if (!root_.files.exists(root_.in(made.partial))) return;
  } catch (const std::exception&) {
  }
  root_.try_to_remove(made.partial);
}

Root::Root(FileSystem& files, comm::Communicator& comm, std::string path,
           std::string run, const Options& options)
    : comm_(comm),
      root_{files, std::move(path), std::move(run), options.durable},
      options_(options),
      directories_(options.directories.leaders.empty()
                       ? find_directories(comm, options.storage)
                       : options.directories) {
  while (root_.path.size() > 1 && root_.path.back() == '/')
    root_.path.pop_back();
  if (!is_shared()) root_.run = broadcast_text(comm_, root_.run);
  on_leaders([&] { open(); });
  find_parts();
  on_leaders([&] {
    tidy(root_, lock_ != nullptr);
    look_for_newest();
  });
  if (is_shared()) return;
  comm_.all_reduce(View(&save_index_, 1, DType::kInt64), comm::ReduceOp::kMax);
  index_at_start_ = save_index_;
}

std::uint64_t Root::total_bytes(const Contents& contents) const {
  const auto bytes = bytes_of_ranks(contents);
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

Root::Committed Root::write(Contents contents) {
  const std::vector<std::uint64_t> bytes = bytes_of_ranks(contents);
  Announcement made;
  try {
    write(contents, made, bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCommFailure) clean_up(made);
    throw;
  }
  return {root_.in(step_name(made.step)),
          std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}),
          made.save_index};
}

void Root::retain(const Retention& which, const std::string& loaded_from) {
  find_parts();
  std::string names;  // The library's names, which have no spaces
  on_rank_0([&] {
    require(which.keep_last >= 0, "keep_last", ">= 0", which.keep_last);
    require(which.keep_every >= 0, "keep_every", ">= 0", which.keep_every);
    for (const std::string& name :
         superfluous(find_checkpoints(root_), root_.run, which,
                     {loaded_from, index_at_start_}))
      names += name + ' ';
  });
  names = broadcast_text(comm_, names);
  on_leaders([&] {
    std::istringstream words(names);
    for (std::string name; words >> name;)
      if (root_.files.exists(root_.in(name))) root_.remove(name);
  });
}

}  // namespace thinwire::checkpoint
