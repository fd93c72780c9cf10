package dev.phalanx.spark.ui

import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._

import dev.phalanx.spark.support.{ChildJvm, PhalanxSuite}

/** A real history server, with a stored event log of an application that is gone. */
class HistorySuite extends PhalanxSuite {
  private val app = "/history/local-1790000000000"
  private val run = "9f2c41d07b6e4a55"

  private def withLog[A](body: Path => A): A = withFolder { folder =>
    Files.writeString(folder.resolve("local-1790000000000"), Samples.line("event-log-v1.jsonl") + "\n")
    body(folder)
  }

  test("a history server shows the runs of a stored log, from its store on a disk") {
    withLog { folder =>
      withFolder { disk =>
        val paths = Seq(s"$app/jobs/", s"$app/phalanx/", s"$app/phalanx/run/?id=$run", s"$app/phalanx/json")
        val pages = HistoryMain.pages(folder.toString, disk.toString, paths.asJava).asScala
        assert(pages.forall(_.startsWith("200 ")), pages.mkString("\n"))
        assert(pages.head.contains(s"""href="$app/phalanx/""""), "TAB-1: the tab")
        assert(pages(1).contains(s"run/?id=$run") && pages(1).contains("running when the application ended"))
        assert(pages(2).contains("ValueError: &lt;b&gt;bad&lt;/b&gt;") && pages(2).contains("stages/stage/?id=3"))
        assert(!pages(2).contains("<script>alert"), "TAB-14")
        assert(pages(3).contains(run) && pages(3).contains("5d1b"))
      }
    }
  }

  test("without the jar the same log is shown as any other") {
    withLog { folder =>
      val own = classOf[RunEvent].getProtectionDomain.getCodeSource.getLocation.getPath.stripSuffix("/")
      val without = sys.props("java.class.path").split(':').filterNot(_.stripSuffix("/") == own).mkString(":")
      val ended = ChildJvm.run(
        classOf[HistoryMain].getName,
        Seq(folder.toString, s"$app/jobs/", s"$app/phalanx/"),
        classPath = without
      )
      assert(ended.code == 0, ended.output)
      assert(ended.output.contains("200 ") && ended.output.contains("Spark Jobs"), ended.output)
      assert(!ended.output.contains("/phalanx/\""), "TAB-1: there is no tab")
    }
  }
}
