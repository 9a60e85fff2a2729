// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/root.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "checkpoint/commit/announcement.h"
#include "checkpoint/commit/attachments.h"
#include "checkpoint/commit/commit.h"
#include "checkpoint/commit/leftovers.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/commit/root_directory.h"
#include "checkpoint/commit/write_file.h"
#include "core/require.h"
#include "thinwire/core/log.h"

namespace thinwire::checkpoint {

struct Root::Impl {
  comm::Communicator& comm;
  RootDirectory root;
  Options options;
  std::unique_ptr<FileSystem::Lock> lock{};
  std::int64_t save_index = 0;  // of the last save
  std::int64_t index_at_start = 0;

  [[nodiscard]] bool decides() const { return comm.rank() == 0; }
  // Collective: rank 0 does it, and all know whether it could.
  void on_rank_0(const std::function<void()>& body) {
    everywhere(comm, [&] {
      if (decides()) body();
    });
  }

  void start();
  [[nodiscard]] std::uint64_t total_bytes(const Contents& contents) const;
  void require_space(std::uint64_t bytes) const;
  void begin(const Contents& contents, Announcement& made);
  std::vector<SavedFile> write_files(const Contents& contents,
                                     const Announcement& made,
                                     std::uint64_t total);
  std::vector<SavedFile> gather_files(const std::vector<SavedFile>& own);
  void finish(Manifest& manifest, const Announcement& made) const;
  void write(Contents& contents, Announcement& made, std::uint64_t total);
  void clean_up(const Announcement& made) const noexcept;
};

void Root::Impl::start() {
  constexpr std::size_t kRunDigits = 32;
  require(
      root.run.size() == kRunDigits &&
          root.run.find_first_not_of("0123456789abcdef") == std::string::npos,
      "run", "32 hexadecimal digits", root.run);
  root.make();
  lock = root.files.lock(root.in(".lock"),
                         fmt::format("{} pid {}", host_name(), ::getpid()));
  if (!lock) {
    log(LogLevel::kInfo,
        root.path +
            ": this file system has no locks; another run that "
            "writes here too would not be noticed");
  }
  tidy(root, lock != nullptr);
  for (const FoundCheckpoint& one : find_checkpoints(root.files, root.path)) {
    // It may be the newest; the next one must be newer.
    if (one.unreadable) throw Error(ErrorCode::kUnavailable, one.problem);
    save_index = std::max(save_index, one.manifest.save_index);
  }
  index_at_start = save_index;
}

std::uint64_t Root::Impl::total_bytes(const Contents& contents) const {
  std::uint64_t own = 0;
  for (const PlannedFile& file : contents.files) own += file.header.file_bytes;
  for (const Attachment& one : contents.attachments) own += one.bytes.size();
  return sum_over_ranks(comm, own);
}

// The manifest, blocks begun, and others who write to the same disk.
void Root::Impl::require_space(std::uint64_t bytes) const {
  const std::uint64_t needed = bytes + bytes / 50 + (std::uint64_t{16} << 20);
  const std::uint64_t free = root.files.free_bytes(root.path);
  if (free >= needed) return;
  throw Error(ErrorCode::kUnavailable,
              fmt::format("{}: a checkpoint needs {} bytes, {} are free "
                          "(keep_last = k needs room for k + 1)",
                          root.path, needed, free));
}

void Root::Impl::begin(const Contents& contents, Announcement& made) {
  require(contents.manifest.step >= 0, "step", ">= 0", contents.manifest.step);
  require_attachments(contents.attachments, contents.files);
  made.host = host_name();
  made.step = contents.manifest.step;
  made.save_index = ++save_index;
  const std::string partial = root.partial_name(made.step);
  root.files.make_directory(root.in(partial));
  made.partial = partial;  // it is there, and to be removed if all fails
  root.files.create(fmt::format("{}/{}", root.in(partial), kProbeName))
      ->close();
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
  return written;
}

std::vector<SavedFile> Root::Impl::gather_files(
    const std::vector<SavedFile>& own) {
  std::vector<SavedFile> all;
  for (const std::string& text : gather_texts(comm, to_text(own))) {
    for (SavedFile& file : saved_files_from(text))
      all.push_back(std::move(file));
  }
  return all;
}

void Root::Impl::finish(Manifest& manifest, const Announcement& made) const {
  manifest.id = random_id();
  manifest.run = root.run;
  manifest.save_index = made.save_index;
  manifest.written = fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(options.clock())));
  manifest.library = THINWIRE_VERSION;
  manifest.durable = options.durable;
  root.files.remove_file(
      fmt::format("{}/{}", root.in(made.partial), kProbeName));
  commit(root, made.partial, manifest);
}

void Root::Impl::write(Contents& contents, Announcement& made,
                       std::uint64_t total) {
  on_rank_0([&] {
    require_space(total);
    begin(contents, made);
  });
  made = broadcast_announcement(comm, made);
  everywhere(comm, [&] {
    wait_for_probe(root.files, root.path, made, comm.rank(), options.patience);
  });
  std::vector<SavedFile> own;
  everywhere(comm, [&] { own = write_files(contents, made, total); });
  contents.manifest.files = gather_files(own);
  on_rank_0([&] {
    finish(contents.manifest, made);
    if (contents.progress) contents.progress(total, total);
  });
}

// Only where all ranks have come to an end; else one may still be writing.
void Root::Impl::clean_up(const Announcement& made) const noexcept {
  if (!decides() || made.partial.empty()) return;
  try {
    if (!root.files.exists(root.in(made.partial))) return;
  } catch (const std::exception&) {
  }
  root.try_to_remove(made.partial);
}

Root::Root(FileSystem& files, comm::Communicator& comm, std::string path,
           std::string run, const Options& options) {
  if (options.storage == Storage::kNodeLocal) {
    throw Error(ErrorCode::kUnavailable,
                "SaveOptions.storage must be kShared, got kNodeLocal");
  }
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  impl_ = std::make_unique<Impl>(
      Impl{comm,
           {files, std::move(path), std::move(run), options.durable},
           options});
  impl_->on_rank_0([&] { impl_->start(); });
}

Root::~Root() = default;

Root::Committed Root::write(Contents contents) {
  const std::uint64_t total = impl_->total_bytes(contents);
  Announcement made;
  try {
    impl_->write(contents, made, total);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCommFailure) impl_->clean_up(made);
    throw;
  }
  return {impl_->root.in(step_name(made.step)), total, made.save_index};
}

void Root::retain(const Retention& which, const std::string& loaded_from) {
  impl_->on_rank_0([&] {
    const RootDirectory& root = impl_->root;
    require(which.keep_last >= 0, "keep_last", ">= 0", which.keep_last);
    require(which.keep_every >= 0, "keep_every", ">= 0", which.keep_every);
    for (const std::string& name :
         superfluous(find_checkpoints(root.files, root.path), root.run, which,
                     {loaded_from, impl_->index_at_start})) {
      root.remove(name);
    }
  });
}

}  // namespace thinwire::checkpoint
