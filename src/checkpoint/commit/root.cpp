// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/root.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "checkpoint/commit/commit.h"
#include "checkpoint/commit/directories.h"
#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/commit/leftovers.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/commit/root_directory.h"
#include "checkpoint/commit/write_file.h"
#include "checkpoint/format/fields.h"
#include "checkpoint/format/manifest_text.h"
#include "comm/host_name.h"
#include "core/json.h"
#include "core/require.h"
#include "thinwire/core/log.h"

namespace thinwire::checkpoint {

namespace {

// Rank 0's message to the others before a checkpoint is written.
struct Announcement {
  std::string partial;  // directory in ROOT
  std::int64_t step = 0;
  std::int64_t save_index = 0;
};

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
            "a name of no other file of the checkpoint", one.name);
    require(one.bytes.size() <= kMostBytes, "attachments[].bytes",
            "at most 16 MiB", one.bytes.size());
  }
}

}  // namespace

struct Root::Impl {
  comm::Communicator& comm;
  RootDirectory root;
  Options options;
  Directories directories;
  std::unique_ptr<FileSystem::Lock> lock{};
  std::int64_t save_index = 0;  // of the last save
  std::int64_t index_at_start = 0;

  // Runs `body` on rank 0. If it throws, all ranks do. Collective.
  void on_rank_0(const std::function<void()>& body) {
    everywhere(comm, [&] {
      if (decides()) body();
    });
  }
  // Runs `body` on the ranks that lead. If it throws, all ranks do. Collective.
  void on_leaders(const std::function<void()>& body) {
    everywhere(comm, [&] {
      if (leads()) body();
    });
  }
  // Looks for checkpoints whose files are on several hosts. Collective.
  void find_parts() {
    if (!is_shared()) root.in_parts = find_in_parts(comm, root, leads());
  }
  void start();
  [[nodiscard]] std::vector<std::uint64_t> bytes_of_ranks(
      const Contents& contents) const;
  [[nodiscard]] Announcement announce(const Contents& contents);
  void write(Contents& contents, Announcement& made,
             const std::vector<std::uint64_t>& bytes);
  void clean_up(const Announcement& made) const noexcept;

 private:
  [[nodiscard]] bool decides() const { return comm.rank() == 0; }
  [[nodiscard]] int leader_of(int rank) const {
    return directories.leaders[static_cast<std::size_t>(rank)];
  }
  // Returns whether this rank makes the directory that it writes into.
  [[nodiscard]] bool leads() const {
    return leader_of(comm.rank()) == comm.rank();
  }
  [[nodiscard]] bool is_shared() const {
    return options.storage == Storage::kShared;
  }
  [[nodiscard]] const std::string& host_of(int rank) const {
    return directories.hosts[static_cast<std::size_t>(rank)];
  }
  void open();
  void look_for_newest();
  [[nodiscard]] std::uint64_t bytes_here(
      const std::vector<std::uint64_t>& of_ranks) const;
  void require_space(std::uint64_t bytes) const;
  [[nodiscard]] std::string probe(const Announcement& made) const {
    return fmt::format("{}/{}", root.in(made.partial), kProbeName);
  }
  void begin(const Announcement& made) const;
  void wait_for_probe(const Announcement& made) const;
  std::vector<SavedFile> write_files(const Contents& contents,
                                     const Announcement& made,
                                     std::uint64_t total);
  std::vector<SavedFile> gather_files(const std::vector<SavedFile>& own);
  void fill_in(Manifest& manifest, const Announcement& made) const;
  void commit_in_parts(Manifest& manifest, Announcement& made);
};

// Collective.
void Root::Impl::start() {
  if (!is_shared()) root.run = broadcast_text(comm, root.run);
  on_leaders([&] { open(); });
  find_parts();
  on_leaders([&] {
    tidy(root, lock != nullptr);
    look_for_newest();
  });
  if (is_shared()) return;
  comm.all_reduce(View(&save_index, 1, DType::kInt64), comm::ReduceOp::kMax);
  index_at_start = save_index;
}

void Root::Impl::open() {
  constexpr std::size_t kRunDigits = 32;
  require(
      root.run.size() == kRunDigits &&
          root.run.find_first_not_of("0123456789abcdef") == std::string::npos,
      "run", "32 hexadecimal digits", root.run);
  root.make();
  lock =
      root.files.lock(root.in(".lock"),
                      fmt::format("{} pid {}", comm::host_name(), ::getpid()));
  if (!lock) {
    log(LogLevel::kInfo, root.path +
                             ": this file system has no locks; another run "
                             "that writes here cannot be detected");
  }
}

void Root::Impl::look_for_newest() {
  for (const FoundCheckpoint& one : find_checkpoints(root)) {
    // It may be the newest; the next one must be newer.
    if (one.unreadable) throw Error(ErrorCode::kUnavailable, one.problem);
    save_index = std::max(save_index, one.manifest.save_index);
  }
  index_at_start = save_index;
}

// Collective.
std::vector<std::uint64_t> Root::Impl::bytes_of_ranks(
    const Contents& contents) const {
  std::int64_t own = 0;
  for (const PlannedFile& file : contents.files)
    own += static_cast<std::int64_t>(file.header.file_bytes);
  if (decides())
    for (const Attachment& one : contents.attachments)
      own += static_cast<std::int64_t>(one.bytes.size());
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span<const std::int64_t>(&own, 1), all);
  return {all.begin(), all.end()};
}

std::uint64_t Root::Impl::bytes_here(
    const std::vector<std::uint64_t>& of_ranks) const {
  std::uint64_t sum = 0;
  for (std::size_t r = 0; r < of_ranks.size(); ++r)
    if (leader_of(static_cast<int>(r)) == leader_of(comm.rank()))
      sum += of_ranks[r];
  return sum;
}

// The manifest, blocks begun, and others who write to the same disk.
void Root::Impl::require_space(std::uint64_t bytes) const {
  const std::uint64_t margin = bytes / 50 + (std::uint64_t{16} << 20);
  const std::uint64_t free = root.files.free_bytes(root.path);
  if (free >= bytes + margin) return;
  throw Error(
      ErrorCode::kUnavailable,
      fmt::format("{}: a checkpoint needs {} bytes and a margin of {} (2 % and "
                  "16 MiB), {} are free (keep_last = k needs room for k + 1)",
                  root.path, bytes, margin, free));
}

// Collective.
Announcement Root::Impl::announce(const Contents& contents) {
  Announcement made;
  on_rank_0([&] {
    require(contents.manifest.step >= 0, "step", ">= 0",
            contents.manifest.step);
    require_attachments(contents.attachments, contents.files);
    made.step = contents.manifest.step;
    made.save_index = ++save_index;
    made.partial = root.partial_name(made.step);
  });
  std::istringstream text(broadcast_text(
      comm,
      fmt::format("{}\n{}\n{}", made.step, made.save_index, made.partial)));
  text >> made.step >> made.save_index >> made.partial;
  return made;
}

void Root::Impl::begin(const Announcement& made) const {
  root.files.make_directory(root.in(made.partial));
  root.files.create(probe(made))->close();
}

// Until this rank can open what its leader has made.
void Root::Impl::wait_for_probe(const Announcement& made) const {
  const int own = comm.rank();
  const int maker = leader_of(own);
  if (!keep_looking(root.files, options.patience,
                    [&] { return root.files.exists(probe(made)); }))
    throw Error(
        ErrorCode::kUnavailable,
        fmt::format("{} is not shared: rank {} on host {} does not see "
                    "the file that rank {} on host {} wrote",
                    root.path, own, host_of(own), maker, host_of(maker)));
  root.files.open(probe(made), /*follows_links=*/false)->close();
}

std::vector<SavedFile> Root::Impl::write_files(const Contents& contents,
                                               const Announcement& made,
                                               std::uint64_t total) {
  Destination to{root.files, root.in(made.partial), options.durable, {}};
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
  if (!written.empty()) root.sync(to.directory);
  if (!is_shared())
    for (SavedFile& file : written) file.host = host_of(comm.rank());
  return written;
}

// Collective.
std::vector<SavedFile> Root::Impl::gather_files(
    const std::vector<SavedFile>& own) {
  Json list;
  list.kind = Json::Kind::kArray;
  for (const SavedFile& file : own) list.elements.push_back(file_to_json(file));
  std::vector<SavedFile> all;
  for (const std::string& text : gather_texts(comm, compact_json(list)))
    for (const Json& file : parse_json(text).elements)
      all.push_back(file_from_json(file, "what a rank sent"));
  return all;
}

void Root::Impl::fill_in(Manifest& manifest, const Announcement& made) const {
  manifest.id = random_id();
  manifest.run = root.run;
  manifest.save_index = made.save_index;
  manifest.written = fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(options.clock())));
  manifest.library = THINWIRE_VERSION;
  manifest.durable = options.durable;
}

// Collective. Once every directory has the manifest, what a crash leaves under
// partial names is adopted; before that, none of it.
void Root::Impl::commit_in_parts(Manifest& manifest, Announcement& made) {
  std::string text;
  on_rank_0([&] {
    fill_in(manifest, made);
    text = write_manifest(manifest);
  });
  text = broadcast_text(comm, text);
  on_leaders([&] {
    root.files.remove_file(probe(made));
    put_manifest(root, made.partial, text);
  });
  const std::string partial = std::exchange(made.partial, {});  // it stays
  std::string replaced;
  on_leaders([&] { replaced = publish(root, partial, made.step); });
  on_leaders([&] { remove_replaced(root, replaced); });
}

// Collective.
void Root::Impl::write(Contents& contents, Announcement& made,
                       const std::vector<std::uint64_t>& bytes) {
  const std::uint64_t total =
      std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  made = announce(contents);
  on_leaders([&] {
    require_space(bytes_here(bytes));
    begin(made);
  });
  everywhere(comm, [&] { wait_for_probe(made); });
  std::vector<SavedFile> own;
  everywhere(comm, [&] { own = write_files(contents, made, total); });
  Manifest& manifest = contents.manifest;
  manifest.files = gather_files(own);
  if (!is_shared()) commit_in_parts(manifest, made);
  on_rank_0([&] {
    if (is_shared()) {
      fill_in(manifest, made);
      root.files.remove_file(probe(made));
      put_manifest(root, made.partial, write_manifest(manifest));
      remove_replaced(root, publish(root, made.partial, made.step));
    }
    if (contents.progress) contents.progress(total, total);
  });
}

// Only where all ranks have come to an end; else one may still be writing.
void Root::Impl::clean_up(const Announcement& made) const noexcept {
  if (!leads() || made.partial.empty()) return;
  try {
    if (!root.files.exists(root.in(made.partial))) return;
  } catch (const std::exception&) {
  }
  root.try_to_remove(made.partial);
}

Root::Root(FileSystem& files, comm::Communicator& comm, std::string path,
           std::string run, const Options& options) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  impl_ = std::make_unique<Impl>(
      Impl{comm,
           {files, std::move(path), std::move(run), options.durable},
           options,
           options.directories.leaders.empty()
               ? find_directories(comm, options.storage)
               : options.directories});
  impl_->start();
}

Root::~Root() = default;

std::uint64_t Root::total_bytes(const Contents& contents) const {
  const auto bytes = impl_->bytes_of_ranks(contents);
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

Root::Committed Root::write(Contents contents) {
  const std::vector<std::uint64_t> bytes = impl_->bytes_of_ranks(contents);
  Announcement made;
  try {
    impl_->write(contents, made, bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCommFailure) impl_->clean_up(made);
    throw;
  }
  return {impl_->root.in(step_name(made.step)),
          std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}),
          made.save_index};
}

void Root::retain(const Retention& which, const std::string& loaded_from) {
  const RootDirectory& root = impl_->root;
  impl_->find_parts();
  std::string names;  // of ours: no spaces
  impl_->on_rank_0([&] {
    require(which.keep_last >= 0, "keep_last", ">= 0", which.keep_last);
    require(which.keep_every >= 0, "keep_every", ">= 0", which.keep_every);
    for (const std::string& name :
         superfluous(find_checkpoints(root), root.run, which,
                     {loaded_from, impl_->index_at_start}))
      names += name + ' ';
  });
  names = broadcast_text(impl_->comm, names);
  impl_->on_leaders([&] {
    std::istringstream words(names);
    for (std::string name; words >> name;)
      if (root.files.exists(root.in(name))) root.remove(name);
  });
}

}  // namespace thinwire::checkpoint
