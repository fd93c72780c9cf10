package dev.phalanx.spark.jni

import java.io.File
import java.lang.reflect.InvocationTargetException
import java.net.URLClassLoader
import java.nio.file.{Files, Paths}

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.scalatest.concurrent.Eventually

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.driver.{Hub, Job}
import dev.phalanx.spark.internal.{ExecutableFolders, Version}
import dev.phalanx.spark.support.{Logged, PhalanxSuite}

class NativeLibrarySuite extends PhalanxSuite with Eventually {
  private val resource = getClass.getClassLoader.getResource(s"${NativeLibrary.folder}/libphalanx_jni.so")

  private def leftovers: Set[String] =
    Using.resource(Files.list(Paths.get(sys.props("java.io.tmpdir")))) { files =>
      files.iterator.asScala.map(_.getFileName.toString).filter(_.startsWith("phalanx-native-")).toSet
    }

  test("a library that doesn't load names system, C library and what was tried") {
    withFolder { folder =>
      val before = leftovers
      val bad = Files.writeString(folder.resolve("bad.so"), "no library").toUri.toURL
      val thrown = intercept[TrainingException](NativeLibrary.load(bad, Version.phalanx))
      assert(thrown.kind == "start")
      val expected = ("can't be loaded on linux/(x86_64|aarch64) with glibc \\d+\\.\\d+: " +
        s"tried $bad by way of /.*/libphalanx_jni\\.so: .*").r
      assert(expected.findFirstIn(thrown.message).isDefined, s"JAR-15: ${thrown.message}")
      assert(thrown.getCause.isInstanceOf[LinkageError])
      assert(leftovers == before, "JAR-13: the temporary file is removed")
    }
  }

  test("where one folder takes no library the next is tried, and all are named") {
    withFolder { folder =>
      val bad = Files.writeString(folder.resolve("bad.so"), "no library").toUri.toURL
      val nowhere = folder.resolve("nowhere")
      val thrown = intercept[TrainingException](NativeLibrary.load(bad, Version.phalanx, Seq(nowhere, folder)))
      val tried = s"tried $bad by way of $nowhere: java.nio.file.NoSuchFileException: $nowhere"
      assert(thrown.message.contains(tried) && thrown.message.contains(s"; $folder/phalanx-native-"), "JAR-13")
      assert(folder.toFile.list.toSeq == Seq("bad.so"), "JAR-13")
    }
  }

  test("a jar without a library for this system says so") {
    val thrown = intercept[TrainingException](NativeLibrary.load(null, Version.phalanx))
    assert(thrown.message.endsWith(s"the jar has no ${NativeLibrary.folder}/libphalanx_jni.so"))
  }

  test("a library of another version is refused") {
    // In classes of its own: a second library among this suite's would take some of its native methods.
    val entries = sys.props("java.class.path").split(File.pathSeparator).map(Paths.get(_).toUri.toURL)
    Using.resource(new URLClassLoader(entries, ClassLoader.getPlatformClassLoader)) { others =>
      val other = others.loadClass(NativeLibrary.getClass.getName)
      val load = other.getMethods.find(_.getName == "load").get
      val folders = others.loadClass(ExecutableFolders.getClass.getName)
      val instance = (of: Class[_]) => of.getField("MODULE$").get(null)
      val nil = instance(others.loadClass(Nil.getClass.getName))
      val all = folders.getMethods.find(_.getName == "all").get.invoke(instance(folders), nil)
      val thrown =
        intercept[InvocationTargetException](load.invoke(instance(other), resource, "9.9.9", all))
      val refusal = thrown.getCause
      assert(refusal.getClass.getName == classOf[TrainingException].getName)
      assert(
        refusal.getMessage.endsWith(s"$resource has version ${Version.phalanx}, but the jar has version 9.9.9"),
        "JAR-14"
      )
    }
  }

  test("the library is loaded once, from a file that is gone") {
    val before = leftovers
    val first = NativeLibrary.native
    assert(first eq NativeLibrary.native)
    assert(leftovers == before, "JAR-13")
    assert(first.version() == Version.phalanx)
  }

  test("a C library that can't be found out is no error") {
    assert(LibcVersion.describe(Paths.get("/nowhere")) == "an unknown C library")
    assert(LibcVersion.describe().matches("glibc \\d+\\.\\d+"))
  }

  test("a panic of the core becomes a TrainingException") {
    val thrown = intercept[TrainingException](Core(_.failForTest("panic", "it broke")))
    assert(thrown.kind == "panic" && thrown.message.contains("it broke"), "BINDING-2")
  }

  test("a bad setting and a stale hub are errors with a kind") {
    val bad = intercept[IllegalArgumentException](Core(_.settingWarnings(Array("spark.phalanx.grace", "soon"))))
    assert(bad.getMessage.contains("spark.phalanx.grace"))
    val stale = intercept[TrainingException](Core(_.logs(4711, 0)))
    assert(stale.kind == "closed", s"BINDING-3: ${stale.message}")
  }

  test("a closed hub's output is kept for as long as somebody may ask for it") {
    val job = Job("test", 1, 1, useGpu = false, Array.empty)
    var hub = Hub.open(job, "127.0.0.1", "127.0.0.1", sys.props("java.io.tmpdir"))
    val handle = hub.handle
    hub.close()
    assert(hub.logs(0) == "", "BINDING-1")
    hub = null
    eventually {
      System.gc()
      assert(intercept[TrainingException](Core(_.logs(handle, 0))).kind == "closed", "BINDING-1")
    }
  }

  test("log records of the core reach slf4j") {
    val job = Job("test", 1, 1, useGpu = false, Array.empty)
    val said = Logged.by("dev.phalanx.core") {
      Hub.open(job, "", "no-such-host.invalid", sys.props("java.io.tmpdir")).close()
    }
    assert(said.exists(_.startsWith("WARN")), s"JAR-12: $said")
  }
}
