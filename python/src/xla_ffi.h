#pragma once
// The part of XLA's C foreign-function ABI (version 0.x, xla/ffi/api/c_api.h) that a handler without state needs: so that the wheel does
// not depend on jaxlib's headers.
#include <cstddef>
#include <cstdint>

namespace foveal::python::xla {

constexpr int api_major = 0;
constexpr int api_minor = 1;  ///< the lowest version with everything used here

struct ApiVersion {
  std::size_t struct_size;
  void* extension;
  int major, minor;
};

struct Extension {
  std::size_t struct_size;
  int type;  ///< 1: metadata
  Extension* next;
};

struct Metadata {
  std::size_t struct_size;
  ApiVersion api_version;
  std::uint32_t traits;  ///< 1: the handler may be captured into a command buffer
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Buffer {
  std::size_t struct_size;
  void* extension;
  int dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct ByteSpan {
  const char* data;
  std::size_t size;
};

constexpr int attr_string = 4;

struct Buffers {
  std::size_t struct_size;
  void* extension;
  std::int64_t size;
  int* types;
  void** items;  ///< Buffer*
};

struct Attrs {
  std::size_t struct_size;
  void* extension;
  std::int64_t size;
  int* types;
  ByteSpan** names;
  void** items;  ///< ByteSpan* for attr_string
};

struct ErrorCreateArgs {
  std::size_t struct_size;
  void* extension;
  const char* message;
  int code;
};

struct StreamGetArgs {
  std::size_t struct_size;
  void* extension;
  void* context;
  void* stream;
};

struct Api {
  std::size_t struct_size;
  void* extension;
  ApiVersion version;
  const void* internal;
  void* (*error_create)(ErrorCreateArgs*);
  void* error_get_message;
  void* error_destroy;
  void* handler_register;
  void* (*stream_get)(StreamGetArgs*);
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extension;
  const Api* api;
  void* context;
  int stage;  ///< 3: execute
  Buffers args;
  Buffers rets;
  Attrs attrs;
};

}  // namespace foveal::python::xla
