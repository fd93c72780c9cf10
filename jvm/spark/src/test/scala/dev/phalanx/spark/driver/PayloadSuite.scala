package dev.phalanx.spark.driver

import java.nio.charset.StandardCharsets.UTF_8

import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.support.PhalanxSuite

class PayloadSuite extends PhalanxSuite {

  private def parts(payload: Array[Byte]): (String, String, String) = {
    val lines = new String(payload, UTF_8).split("\n", 3)
    (lines(0), lines(1), lines(2))
  }

  test("a file's payload has its name, path, arguments and source") {
    val (first, header, body) =
      parts(Payload.file(TrainFile("/a/b/trän.py", "x = 1\ny = 2\n".getBytes(UTF_8)), Seq("--lr=\"1\"", "ü")))
    assert(first == "phalanx payload 1")
    assert(body == "x = 1\ny = 2\n")
    val fields = Json.read(header)
    assert(fields.path("kind").asText == "file")
    assert(fields.path("results").asText == "json")
    assert(fields.path("name").asText == "trän.py")
    assert(fields.path("path").asText == "/a/b/trän.py")
    assert(Json.texts(fields.path("args")) == Seq("--lr=\"1\"", "ü"))
  }

  test("a module's payload has an empty body") {
    val (_, header, body) = parts(Payload.module("pkg.train", Seq("a")))
    assert(body == "")
    assert(Json.read(header).path("kind").asText == "module")
    assert(Json.read(header).path("name").asText == "pkg.train")
  }
}
