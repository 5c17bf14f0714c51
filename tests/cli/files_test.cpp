// The readers against files that NumPy and safetensors wrote (data/make.py), against our own writers, and against damage.
#include "files/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/float16.h"
#include "base/random.h"
#include "files/npy.h"
#include "files/npz.h"
#include "files/safetensors.h"
#include "foveal/error.h"
#include "own_folder.h"

namespace foveal::cli {
namespace {

namespace fs = std::filesystem;

std::string data(const std::string& name) { return std::string(FOVEAL_TEST_DATA) + "/" + name; }

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

double element(const Tensor& tensor, std::size_t i) {
  const std::byte* at = tensor.bytes.data() + i * size_of(tensor.dtype);
  const auto as = [at]<class T>(T value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (tensor.dtype) {
    case DType::f64:
      return as(double{});
    case DType::f32:
      return as(float{});
    case DType::bf16:
      return base::bf16_to_float(as(std::uint16_t{}));
    case DType::f16:
      return base::f16_to_float(as(std::uint16_t{}));
    case DType::i64:
      return static_cast<double>(as(std::int64_t{}));
    case DType::i32:
      return as(std::int32_t{});
    case DType::i16:
      return as(std::int16_t{});
    case DType::i8:
      return as(std::int8_t{});
    case DType::u8:
      return as(std::uint8_t{});
    case DType::boolean:
      return as(std::uint8_t{});
  }
  return -1;
}

void expect_counting(const Tensor& tensor, DType dtype, const std::vector<std::int64_t>& shape) {
  SCOPED_TRACE(tensor.name);
  EXPECT_EQ(tensor.dtype, dtype);
  EXPECT_EQ(tensor.shape, shape);
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  ASSERT_EQ(tensor.bytes.size(), count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(element(tensor, i), static_cast<double>(dtype == DType::boolean ? i % 2 : i)) << i;
}

struct Expected {
  const char* name;
  DType dtype;
  std::vector<std::int64_t> shape;
};
const std::vector<Expected> arrays{{"f64", DType::f64, {2, 3}},     {"f32", DType::f32, {2, 3, 4}}, {"f16", DType::f16, {5}},
                                   {"bf16", DType::bf16, {2, 2}},   {"i64", DType::i64, {3}},       {"i32", DType::i32, {}},
                                   {"i16", DType::i16, {1, 1}},     {"i8", DType::i8, {7}},         {"u8", DType::u8, {0, 3}},
                                   {"boolean", DType::boolean, {4}}};

class Archive : public testing::TestWithParam<const char*> {};

TEST_P(Archive, HoldsWhatItsWriterPutIn) {
  const std::vector<Tensor> tensors = read_tensors(data(GetParam()));
  ASSERT_EQ(tensors.size(), arrays.size());
  for (const Expected& expected : arrays) {
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == expected.name; });
    ASSERT_NE(found, tensors.end()) << expected.name;
    expect_counting(*found, expected.dtype, expected.shape);
  }
}

TEST_P(Archive, IsRefusedWhenCutAnywhere) {
  const std::vector<std::byte> whole = bytes_of(data(GetParam()));
  const fs::path path = GetParam();
  const auto parse = [&](std::span<const std::byte> bytes) {
    return path.extension() == ".npz" ? parse_npz(bytes, "cut") : parse_safetensors(bytes, "cut");
  };
  EXPECT_NO_THROW(parse(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse(std::span(whole).first(size)), Error) << size << " of " << whole.size() << " bytes";
  }
}

// A flipped bit is found, or it lies where it changes no tensor's bounds; it never reads outside the file (the sanitizers watch).
TEST_P(Archive, SurvivesFlippedBits) {
  const std::vector<std::byte> whole = bytes_of(data(GetParam()));
  const bool npz = std::string(GetParam()).ends_with(".npz");
  base::Random random(7);
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    std::vector<std::byte> damaged = whole;
    const auto at = static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(whole.size()) - 1));
    damaged[at] ^= std::byte{1} << random.integer(0, 7);
    try {
      npz ? parse_npz(damaged, "damaged") : parse_safetensors(damaged, "damaged");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

std::vector<std::byte> safetensors_file(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::vector<std::byte> file(sizeof length + header.size() + data_bytes);
  std::memcpy(file.data(), &length, sizeof length);
  std::memcpy(file.data() + sizeof length, header.data(), header.size());
  return file;
}

TEST(Safetensors, TensorsThatShareTheirBytesAreRefused) {
  const auto file_of = [](int tensors) {
    std::string header;
    for (int i = 0; i < tensors; ++i)
      header += base::join(i == 0 ? "{" : ", ", "\"", i, "\": {\"dtype\": \"U8\", \"shape\": [1048576], \"data_offsets\": [0, 1048576]}");
    return safetensors_file(header + "}", 1 << 20);
  };
  EXPECT_NO_THROW(parse_safetensors(file_of(1), "once"));
  try {
    parse_safetensors(file_of(3000), "many");
    ADD_FAILURE() << "3 GiB of 1 MiB";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("shares its bytes"), std::string::npos) << error.what();
  }
}

TEST(Safetensors, ANameGivenTwiceIsRefused) {
  const std::string entry = R"("a": {"dtype": "U8", "shape": [1], "data_offsets": [)";
  try {
    parse_safetensors(safetensors_file("{" + entry + "0, 1]}, " + entry + "1, 2]}}", 2), "twice");
    ADD_FAILURE() << "one of two was dropped";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a second tensor named \"a\""), std::string::npos) << error.what();
  }
}

TEST(Safetensors, NumbersThatAreNoIntegersAreRefused) {
  for (const char* numbers : {"\"shape\": [1], \"data_offsets\": [0, 3.81e192]", "\"shape\": [2.5e69], \"data_offsets\": [0, 4]",
                              "\"shape\": [1.5], \"data_offsets\": [0, 4]", "\"shape\": [1], \"data_offsets\": [0, 18446744073709551615]",
                              "\"shape\": [1], \"data_offsets\": [-4, 0]", "\"shape\": [1], \"data_offsets\": [0, 4, 8]"}) {
    const std::string header = base::join("{\"a\": {\"dtype\": \"F32\", ", numbers, "}}");
    EXPECT_THROW(parse_safetensors(safetensors_file(header, 4), "numbers"), Error) << header;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Archive, testing::Values("stored.npz", "deflated.npz", "all.safetensors"),
                         [](const auto& info) { return fs::path(info.param).stem().string(); });

TEST(Npy, FortranOrderBecomesRowMajor) { expect_counting(read_tensors(data("fortran.npy")).front(), DType::f32, {2, 3, 4}); }
TEST(Npy, Version2) { expect_counting(read_tensors(data("version2.npy")).front(), DType::f32, {3, 2}); }
TEST(Npy, NamedAfterItsFile) { EXPECT_EQ(read_tensors(data("fortran.npy")).front().name, "fortran"); }

TEST(Npy, IsRefusedWhenCutAnywhere) {
  const std::vector<std::byte> whole = bytes_of(data("fortran.npy"));
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_THROW(parse_npy(std::span(whole).first(size), "cut"), Error) << size;
}

void expect_refused(const std::string& path, const std::string& part_of_message) {
  try {
    read_tensors(path);
    ADD_FAILURE() << path << " was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find(part_of_message), std::string::npos) << error.what();
  }
}

std::vector<std::byte> npy_file(const std::string& shape, std::size_t data_bytes) {
  const std::string header = "{'descr': '|u1', 'fortran_order': True, 'shape': (" + shape + "), }";
  const auto length = static_cast<std::uint32_t>(header.size());
  std::vector<std::byte> file(12 + header.size() + data_bytes);
  std::memcpy(file.data(), "\x93NUMPY\x02", 8);
  std::memcpy(file.data() + 8, &length, sizeof length);
  std::memcpy(file.data() + 12, header.data(), header.size());
  return file;
}

TEST(Npy, ShapesThatNoTensorHasAreRefused) {
  EXPECT_EQ(parse_npy(npy_file("2, 0, 3,", 0), "empty").view().rank, 3);
  EXPECT_THROW(parse_npy(npy_file("0, 4611686018427387904, 4611686018427387904,", 0), "empty but vast"), Error);
  std::string ones;
  for (int i = 0; i < 30000; ++i) ones += "1,";
  EXPECT_THROW(parse_npy(npy_file(ones + "1048576,", 1 << 20), "of many dimensions"), Error);
}

TEST(Npz, EntriesThatShareTheirBytesAreRefused) {
  const std::vector<std::byte> once = format_npz({make_tensor("a", DType::u8, {1 << 20})});
  constexpr std::size_t end_size = 22, entry_size = 46 + 5, copies = 3000;  // of one name, "a.npy"
  const std::size_t directory = once.size() - end_size - entry_size;
  std::vector<std::byte> many(once.begin(), once.begin() + static_cast<std::ptrdiff_t>(directory));
  for (std::size_t i = 0; i < copies; ++i)
    many.insert(many.end(), once.begin() + static_cast<std::ptrdiff_t>(directory), once.end() - end_size);
  many.insert(many.end(), once.end() - end_size, once.end());
  const auto count = static_cast<std::uint16_t>(copies);
  std::memcpy(many.data() + many.size() - end_size + 10, &count, sizeof count);
  EXPECT_NO_THROW(parse_npz(once, "once"));
  try {
    parse_npz(many, "many");
    ADD_FAILURE() << "3 GiB of 1 MiB";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("more bytes than it can hold"), std::string::npos) << error.what();
  }
}

TEST(Files, WrongOnesAreRefusedByName) {
  expect_refused(data("big_endian.npy"), "big-endian");
  expect_refused(data("complex.npy"), "type '<c8'");
  expect_refused(data("missing.npy"), "no such file");
  expect_refused(data("make.py"), "expected .npy, .npz or .safetensors");
  expect_refused(data(""), "a folder, a device or a pipe; expected a file");
}

class RoundTrip : public testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, WhatIsWrittenIsRead) {
  const test::OwnFolder folder;
  std::vector<Tensor> tensors = read_tensors(data("stored.npz"));
  const std::string path = folder / GetParam();
  write_tensors(tensors, path);
  for (const Tensor& tensor : tensors) {
    Tensor found;
    for (Tensor& t : read_tensors(fs::path(path).has_extension() ? path : path + "/" + tensor.name + ".npy")) {
      if (t.name == tensor.name) found = t;
    }
    EXPECT_EQ(found.dtype, tensor.dtype) << tensor.name;
    EXPECT_EQ(found.shape, tensor.shape) << tensor.name;
    EXPECT_EQ(found.bytes, tensor.bytes) << tensor.name;
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) EXPECT_NE(entry.path().extension(), ".unfinished");
}

INSTANTIATE_TEST_SUITE_P(Files, RoundTrip, testing::Values("a.npz", "a.safetensors", "folder"), [](const auto& info) {
  return fs::path(info.param).extension().empty() ? "folder" : fs::path(info.param).extension().string().substr(1);
});

TEST(Writing, AnErrorLeavesTheOldFilesAlone) {
  const test::OwnFolder own;
  const fs::path& folder = own.path();
  const std::string unfinished = "." + std::to_string(getpid()) + ".unfinished";
  fs::create_directories(folder / ("b.npy" + unfinished));  // a folder where the second file would go
  std::ofstream(folder / "a.npy") << "old";
  EXPECT_THROW(write_tensors({make_tensor("a", DType::f32, {2}), make_tensor("b", DType::f32, {2})}, folder.string()), Error);
  EXPECT_EQ(bytes_of((folder / "a.npy").string()).size(), 3u);
  EXPECT_FALSE(fs::exists(folder / ("a.npy" + unfinished)));
  EXPECT_FALSE(fs::exists(folder / "b.npy"));
}

/// Ended while it waits for a reader of the second file: a pipe.
int ended_by(int number, const fs::path& folder) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(number, SIG_DFL);  // a shell's background jobs ignore SIGINT, what nohup starts SIGHUP
    write_tensors({make_tensor("a", DType::f32, {2}), make_tensor("b", DType::f32, {2})}, folder.string());
    _exit(0);
  }
  const fs::path unfinished = folder / ("a.npy." + std::to_string(child) + ".unfinished");
  for (int i = 0; i < 10000 && !fs::exists(unfinished); ++i) usleep(1000);
  EXPECT_TRUE(fs::exists(unfinished));
  kill(child, number);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(Writing, ASignalLeavesNothingUnfinished) {
  for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGXCPU}) {
    const test::OwnFolder own;
    const fs::path& folder = own.path();
    std::ofstream(folder / "a.npy") << "old";
    ASSERT_EQ(::mkfifo((folder / "b.npy").c_str(), 0600), 0);
    EXPECT_EQ(ended_by(number, folder), number);
    EXPECT_EQ(bytes_of((folder / "a.npy").string()).size(), 3u);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 2) << strsignal(number);
  }
}

TEST(Writing, AnIgnoredSignalStaysIgnored) {
  const test::OwnFolder own;
  const auto before = std::signal(SIGHUP, SIG_IGN);
  write_tensors({make_tensor("a", DType::f32, {2})}, own / "a.npz");
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
}

/// A device was replaced by a file.
TEST(Writing, WhatIsNoFileIsWrittenAndLinksStay) {
  const test::OwnFolder own;
  const fs::path& folder = own.path();
  const std::string pipe = (folder / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDWR | O_NONBLOCK);
  write_file({std::byte{1}, std::byte{2}}, pipe);
  EXPECT_TRUE(fs::is_fifo(pipe));
  char found[8];
  EXPECT_EQ(::read(reader, found, sizeof found), 2);
  ::close(reader);

  std::ofstream(folder / "real") << "old";
  fs::create_symlink("real", folder / "link");
  write_file({std::byte{1}}, (folder / "link").string());
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(fs::file_size(folder / "real"), 1u);
  if (fs::is_character_file("/dev/full")) {
    EXPECT_THROW(write_file({std::byte{1}}, "/dev/full"), Error);
    EXPECT_TRUE(fs::is_character_file("/dev/full"));
  }
}

TEST(Writing, PathsAreCheckedBeforehand) {
  EXPECT_THROW(check_output_path("out.txt"), Error);
  EXPECT_THROW(check_output_path("no_such_folder/out.npz"), Error);
  EXPECT_NO_THROW(check_output_path("out.npz"));
}

}  // namespace
}  // namespace foveal::cli
